//! What the standard library takes from the kernel's chance (the keys of hash maps, and from them tokio's choice between ready
//! branches) comes from the seed instead. Each seed has a thread and a process of its own, so nothing is left of another seed's.

use std::cell::RefCell;

use crate::dice::Dice;

thread_local! {
    static DICE: RefCell<Dice> = RefCell::new(Dice::new(0));
}

/// For this thread.
pub fn seed(seed: u64) {
    DICE.set(Dice::new(seed ^ 0x5eed_0fc4_a9ce));
}

/// Takes the place of the C library's in this program.
///
/// # Safety
/// `buffer` has room for `length` bytes, as for the function of this name in the C library.
#[expect(unsafe_code, reason = "a function that C code knows by its name, with a buffer of the caller's")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: usize, _flags: libc::c_uint) -> isize {
    // SAFETY: the caller says that there is room.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    DICE.with_borrow_mut(|dice| bytes.fill_with(|| dice.next() as u8));
    length as isize
}
