//! Bytes and descriptors over the socket between agent and zygote. It knows nothing of what they mean.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};

/// Descriptors that travel with one request.
const DESCRIPTORS_PER_MESSAGE_MAX: usize = 8;

/// Both ends close on exec. A stream, because a request may be larger than one packet may be.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?)
}

/// Sends as many of `bytes` as fit, `descriptors` with the first of them. Never waits.
pub(crate) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<usize> {
    send(socket, bytes, descriptors, MsgFlags::MSG_DONTWAIT)
}

/// Sends all of `bytes`, waiting for room.
pub(crate) fn send_all(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(socket, bytes, &[], MsgFlags::empty()) {
            Ok(count) => bytes = &bytes[count..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[RawFd], flags: MsgFlags) -> io::Result<usize> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control: &[ControlMessage<'_>] = if descriptors.is_empty() { &[] } else { &rights };
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None)?)
}

/// Reads what is there into `bytes` and `descriptors`. Never waits; `Ok(0)` means that the other side is gone.
///
/// The kernel ends a read at the message that carries descriptors, and they come with its first byte. So they arrive in
/// the order of the requests and never later than the request they belong to: a queue is enough to match them.
pub(crate) fn receive_now(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut impl Extend<OwnedFd>,
) -> io::Result<usize> {
    let mut control = nix::cmsg_space!([RawFd; DESCRIPTORS_PER_MESSAGE_MAX]);
    let mut slices = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags)?;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = part {
            descriptors.extend(received.into_iter().map(own));
        }
    }
    if message.flags.contains(MsgFlags::MSG_CTRUNC) {
        // A descriptor was lost (too many open files); requests and descriptors no longer match.
        return Err(Errno::EMFILE.into());
    }
    Ok(message.bytes)
}

#[expect(unsafe_code, reason = "a descriptor that recvmsg has just installed belongs to nobody else")]
fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the kernel made this descriptor for this very call.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
