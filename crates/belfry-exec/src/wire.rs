//! The words between agent and zygote: length-prefixed frames on a stream socket. A frame is `u32 length, u8 kind,
//! fields`; bytes are counted, so arguments need not be UTF-8. It knows no socket and no process.

use crate::prepared::{Identity, LimitOf, ProcessLimit, RunTag};

/// Above what any kernel takes for arguments and environment, so that the kernel's own limit is the one that is met.
pub(crate) const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Names one start for as long as the agent lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token(pub u64);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Comes with descriptors: where the child's stdout and stderr go, what its stdin is if it has one, and what is executed if it is sealed.
    Spawn(Box<SpawnRequest>),
    EndTree {
        token: Token,
        tag: RunTag,
        grace_ms: u64,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SpawnRequest {
    pub token: Token,
    /// Searched in `PATH` when it has no `/`.
    pub program: Vec<u8>,
    pub argv: Vec<Vec<u8>>,
    /// `NAME=value`.
    pub env: Vec<Vec<u8>>,
    /// Else it is `/dev/null`.
    pub has_stdin: bool,
    pub directory: Vec<u8>,
    pub umask: Option<u32>,
    pub identity: Option<Identity>,
    pub no_new_privileges: bool,
    pub limits: Vec<ProcessLimit>,
    /// Files of control groups into which a process writes `0` to enter.
    pub entrances: Vec<Vec<u8>>,
    pub sealed: Option<SealedStart>,
    /// Held to the deadline by a shim.
    pub exclusive: bool,
    pub tag: RunTag,
}

/// How a sealed file is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealedStart {
    /// Where it was read: the child's user must have the right to execute it there.
    pub path: Vec<u8>,
    /// Its interpreter is executed, and reads it from its descriptor.
    pub is_script: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Spawned { token: Token, pid: u32, started_at_ns: u64 },
    SpawnFailed { token: Token, step: Step, errno: i32 },
    Exited(Exited),
    TreeEnded { token: Token },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exited {
    pub token: Token,
    pub code: Option<i32>,
    pub signal: i32,
    pub user_us: u64,
    pub system_us: u64,
    pub max_rss_kib: u64,
    pub left_behind: u32,
    pub past_deadline: bool,
    pub ended_at_ns: u64,
}

macro_rules! steps {
    ($($step:ident = $number:literal $name:literal),+ $(,)?) => {
        /// The step of a start that failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Step { $($step = $number),+ }
        impl Step {
            pub(crate) fn name(self) -> &'static str {
                match self { $(Step::$step => $name),+ }
            }
            pub(crate) fn from_number(number: u8) -> Option<Step> {
                match number { $($number => Some(Step::$step),)+ _ => None }
            }
        }
    };
}

steps! {
    Fork = 1 "fork", Files = 2 "stdin, stdout and stderr", Session = 3 "own session", Signals = 4 "signal mask",
    Groups = 5 "set groups", Group = 6 "set group", User = 7 "set user", DeathSignal = 8 "parent-death signal",
    Parent = 9 "parent is gone", Directory = 10 "enter directory", Exec = 11 "exec", Interpreter = 12 "interpreter",
    ControlGroup = 13 "enter its control group", Limits = 14 "set limits", Privileges = 15 "give up new privileges",
    Shim = 16 "become the shim", Deadline = 17 "its deadline is over",
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        frame(&mut out, |out| match self {
            Request::Spawn(spawn) => {
                out.push(1);
                put_u64(out, spawn.token.0);
                put_bytes(out, &spawn.program);
                put_list(out, &spawn.argv);
                put_list(out, &spawn.env);
                out.push(u8::from(spawn.has_stdin));
                put_bytes(out, &spawn.directory);
                put_u64(out, spawn.umask.map_or(u64::MAX, u64::from));
                match &spawn.identity {
                    None => out.push(0),
                    Some(Identity { uid, gid, groups }) => {
                        out.push(1);
                        put_u32(out, *uid);
                        put_u32(out, *gid);
                        put_u32(out, groups.len() as u32);
                        groups.iter().for_each(|group| put_u32(out, *group));
                    }
                }
                out.push(u8::from(spawn.no_new_privileges));
                put_u32(out, spawn.limits.len() as u32);
                for limit in &spawn.limits {
                    out.push(limit.of as u8);
                    put_u64(out, limit.value);
                }
                put_list(out, &spawn.entrances);
                match &spawn.sealed {
                    None => out.push(0),
                    Some(SealedStart { path, is_script }) => {
                        out.push(1 + u8::from(*is_script));
                        put_bytes(out, path);
                    }
                }
                out.push(u8::from(spawn.exclusive));
                put_tag(out, &spawn.tag);
            }
            Request::EndTree { token, tag, grace_ms } => {
                out.push(2);
                put_u64(out, token.0);
                put_tag(out, tag);
                put_u64(out, *grace_ms);
            }
        });
        out
    }

    /// `None`: not a request this version knows.
    pub(crate) fn decode(body: &[u8]) -> Option<Request> {
        let mut body = Reader(body);
        let request = match body.u8()? {
            1 => Request::Spawn(Box::new(SpawnRequest {
                token: Token(body.u64()?),
                program: body.bytes()?.to_vec(),
                argv: body.list()?,
                env: body.list()?,
                has_stdin: body.u8()? == 1,
                directory: body.bytes()?.to_vec(),
                umask: u32::try_from(body.u64()?).ok(),
                identity: match body.u8()? {
                    0 => None,
                    _ => Some(Identity {
                        uid: body.u32()?,
                        gid: body.u32()?,
                        groups: (0..body.u32()?).map(|_| body.u32()).collect::<Option<_>>()?,
                    }),
                },
                no_new_privileges: body.u8()? == 1,
                limits: (0..body.u32()?).map(|_| body.limit()).collect::<Option<_>>()?,
                entrances: body.list()?,
                sealed: match body.u8()? {
                    0 => None,
                    kind => Some(SealedStart { path: body.bytes()?.to_vec(), is_script: kind == 2 }),
                },
                exclusive: body.u8()? == 1,
                tag: body.tag()?,
            })),
            2 => Request::EndTree { token: Token(body.u64()?), tag: body.tag()?, grace_ms: body.u64()? },
            _ => return None,
        };
        Some(request)
    }
}

impl Reply {
    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        frame(out, |out| match self {
            Reply::Spawned { token, pid, started_at_ns } => {
                out.push(1);
                put_u64(out, token.0);
                put_u32(out, *pid);
                put_u64(out, *started_at_ns);
            }
            Reply::SpawnFailed { token, step, errno } => {
                out.push(2);
                put_u64(out, token.0);
                out.push(*step as u8);
                put_u32(out, *errno as u32);
            }
            Reply::Exited(exited) => {
                out.push(3);
                put_u64(out, exited.token.0);
                out.push(u8::from(exited.code.is_some()));
                put_u32(out, exited.code.unwrap_or(0) as u32);
                put_u32(out, exited.signal as u32);
                put_u64(out, exited.user_us);
                put_u64(out, exited.system_us);
                put_u64(out, exited.max_rss_kib);
                put_u32(out, exited.left_behind);
                out.push(u8::from(exited.past_deadline));
                put_u64(out, exited.ended_at_ns);
            }
            Reply::TreeEnded { token } => {
                out.push(4);
                put_u64(out, token.0);
            }
        });
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Reply> {
        let mut body = Reader(body);
        let kind = body.u8()?;
        let token = Token(body.u64()?);
        let reply = match kind {
            1 => Reply::Spawned { token, pid: body.u32()?, started_at_ns: body.u64()? },
            2 => Reply::SpawnFailed { token, step: Step::from_number(body.u8()?)?, errno: body.u32()? as i32 },
            3 => Reply::Exited(Exited {
                token,
                code: {
                    let by_itself = body.u8()? == 1;
                    let code = body.u32()? as i32;
                    by_itself.then_some(code)
                },
                signal: body.u32()? as i32,
                user_us: body.u64()?,
                system_us: body.u64()?,
                max_rss_kib: body.u64()?,
                left_behind: body.u32()?,
                past_deadline: body.u8()? == 1,
                ended_at_ns: body.u64()?,
            }),
            4 => Reply::TreeEnded { token },
            _ => return None,
        };
        Some(reply)
    }
}

/// Takes the bodies of all whole frames from the front of `inbox`, in order; what is not whole yet stays.
pub(crate) fn take_frames(inbox: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    let mut at = 0;
    while let Some(head) = inbox.get(at..at + 4) {
        let length = u32::from_le_bytes(head.try_into().unwrap_or_default()) as usize;
        let Some(body) = inbox.get(at + 4..at + 4 + length) else { break };
        bodies.push(body.to_vec());
        at += 4 + length;
    }
    inbox.drain(..at);
    bodies
}

fn frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 4]);
    body(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len() as u32);
    out.extend(bytes);
}

fn put_list(out: &mut Vec<u8>, list: &[Vec<u8>]) {
    put_u32(out, list.len() as u32);
    list.iter().for_each(|bytes| put_bytes(out, bytes));
}

fn put_tag(out: &mut Vec<u8>, tag: &RunTag) {
    put_bytes(out, tag.run.as_bytes());
    put_u32(out, tag.attempt);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn list(&mut self) -> Option<Vec<Vec<u8>>> {
        (0..self.u32()?).map(|_| self.bytes().map(<[u8]>::to_vec)).collect()
    }

    fn limit(&mut self) -> Option<ProcessLimit> {
        let number = self.u8()?;
        let of = LimitOf::ALL.into_iter().find(|of| *of as u8 == number)?;
        Some(ProcessLimit { of, value: self.u64()? })
    }

    fn tag(&mut self) -> Option<RunTag> {
        let run = String::from_utf8(self.bytes()?.to_vec()).ok()?;
        Some(RunTag { run, attempt: self.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spawn_request() -> Request {
        Request::Spawn(Box::new(SpawnRequest {
            token: Token(7),
            program: b"/usr/bin/echo".to_vec(),
            argv: vec![b"/bin/echo".to_vec(), vec![0xff, 0x01], vec![]],
            env: vec![b"PATH=/bin".to_vec()],
            has_stdin: true,
            directory: b"/".to_vec(),
            umask: Some(0o027),
            identity: Some(Identity { uid: 1, gid: 2, groups: vec![3, 4] }),
            no_new_privileges: true,
            limits: vec![ProcessLimit { of: LimitOf::OpenFiles, value: 64 }],
            entrances: vec![b"/g/cgroup.procs".to_vec()],
            sealed: Some(SealedStart { path: b"/srv/x".to_vec(), is_script: true }),
            exclusive: true,
            tag: RunTag { run: "01H".into(), attempt: 1 },
        }))
    }

    #[test]
    fn requests_and_replies_come_out_as_they_went_in() {
        let ending = Request::EndTree { token: Token(9), tag: RunTag { run: "x".into(), attempt: 0 }, grace_ms: 10 };
        let mut inbox = spawn_request().encode();
        inbox.extend(ending.encode());
        let bodies = take_frames(&mut inbox);
        assert_eq!(Request::decode(&bodies[0]), Some(spawn_request()));
        assert_eq!(Request::decode(&bodies[1]), Some(ending));
        for reply in [
            Reply::Spawned { token: Token(1), pid: 12, started_at_ns: 5 },
            Reply::SpawnFailed { token: Token(1), step: Step::Exec, errno: 2 },
            Reply::TreeEnded { token: Token(3) },
        ] {
            let mut inbox = Vec::new();
            reply.encode_into(&mut inbox);
            assert_eq!(Reply::decode(&take_frames(&mut inbox)[0]), Some(reply));
        }
    }

    #[test]
    fn a_frame_cut_anywhere_waits_for_its_rest() {
        let whole = spawn_request().encode();
        for cut in 0..whole.len() {
            let mut inbox = whole[..cut].to_vec();
            assert!(take_frames(&mut inbox).is_empty());
            inbox.extend(&whole[cut..]);
            assert_eq!(take_frames(&mut inbox).len(), 1);
            assert!(inbox.is_empty());
        }
    }

    #[test]
    fn a_damaged_body_is_refused_and_never_panics() {
        let whole = spawn_request().encode();
        for cut in 4..whole.len() {
            assert_eq!(Request::decode(&whole[4..cut]), None);
        }
        assert_eq!(Reply::decode(&[200, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
