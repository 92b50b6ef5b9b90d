//! A program's bytes in memory that nobody can change any more: what was looked at is what is executed, whatever becomes of its file.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};

use crate::wire::SealedStart;

/// Where a child finds it: an interpreter opens it by this number.
pub(crate) const SEALED_DESCRIPTOR: i32 = 4;
const SCRIPT: &str = "/dev/fd/4";
const BASH: &str = "/bin/bash";

/// It takes memory of the machine for as long as it runs.
const SEALED_BYTES_MAX: u64 = 256 << 20;
/// As much of the first line as the kernel looks at.
const FIRST_LINE_BYTES_MAX: usize = 256;

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sealed {
    file: Arc<File>,
    /// Of the file that it was copied from.
    path: Option<PathBuf>,
    interpreter: Option<Interpreter>,
}

/// What the first line of a script names: a program, and everything behind it as one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interpreter {
    program: OsString,
    argument: Option<OsString>,
}

#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("read {}: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("{}: it is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("{}: it is larger than {} MiB", path.display(), SEALED_BYTES_MAX >> 20)]
    TooLarge { path: PathBuf },
    #[error("keep a program in memory: {cause}")]
    Memory { cause: io::Error },
}

impl Sealed {
    /// A copy of the file as it is while it is read; what it is worth, its digest tells. Waits for the disk.
    pub fn copy(path: &Path) -> Result<Sealed, SealError> {
        let unreadable = |cause| SealError::Read { path: path.to_owned(), cause };
        let memory = |cause: io::Error| SealError::Memory { cause };
        // A FIFO would be waited for.
        let opened = nix::fcntl::open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty());
        let source = File::from(opened.map_err(|errno| unreadable(errno.into()))?);
        if !source.metadata().map_err(unreadable)?.is_file() {
            return Err(SealError::NotAFile { path: path.to_owned() });
        }
        let mut file = new_memory_file().map_err(|errno| memory(errno.into()))?;
        let copied = io::copy(&mut source.take(SEALED_BYTES_MAX + 1), &mut file).map_err(unreadable)?;
        if copied > SEALED_BYTES_MAX {
            return Err(SealError::TooLarge { path: path.to_owned() });
        }
        seal(&mut file).map_err(memory)?;
        let mut first = [0; FIRST_LINE_BYTES_MAX];
        let length = file.read_at(&mut first, 0).map_err(memory)?;
        let interpreter = Interpreter::named_in(&first[..length]);
        Ok(Sealed { file: Arc::new(file), path: Some(path.to_owned()), interpreter })
    }

    /// A script that is in no file. It is read by this interpreter, written as after `#!`, else by the one that its first line names, else by
    /// bash.
    pub fn script(body: &[u8], interpreter: Option<&str>) -> Result<Sealed, SealError> {
        let memory = |cause: io::Error| SealError::Memory { cause };
        let mut file = new_memory_file().map_err(|errno| memory(errno.into()))?;
        file.write_all(body).map_err(memory)?;
        seal(&mut file).map_err(memory)?;
        let named = interpreter.and_then(|line| Interpreter::named_in(format!("#!{line}\n").as_bytes()));
        let named = named.or_else(|| Interpreter::named_in(&body[..body.len().min(FIRST_LINE_BYTES_MAX)]));
        let bash = || Interpreter { program: BASH.into(), argument: None };
        Ok(Sealed { file: Arc::new(file), path: None, interpreter: Some(named.unwrap_or_else(bash)) })
    }

    /// What reads it, if it is a script.
    pub fn interpreter(&self) -> Option<&OsStr> {
        self.interpreter.as_ref().map(|interpreter| interpreter.program.as_os_str())
    }

    /// From its beginning.
    pub fn bytes(&self) -> impl Read + '_ {
        Bytes { file: &self.file, at: 0 }
    }

    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    pub(crate) fn start(&self) -> SealedStart {
        let path = self.path.as_ref().map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default();
        SealedStart { path, is_script: self.interpreter.is_some() }
    }

    /// With a script's interpreter before it. A shell is told to read the script in a way that leaves `$0` as it is; other
    /// interpreters see the descriptor's name in its place.
    pub(crate) fn argv(&self, argv: Vec<OsString>) -> Vec<OsString> {
        let Some(Interpreter { program, argument }) = &self.interpreter else { return argv };
        let mut words = vec![program.clone()];
        words.extend(argument.clone());
        if self.interpreter.as_ref().is_some_and(Interpreter::is_shell) {
            words.extend(["-c".into(), format!(". {SCRIPT}").into()]);
            words.extend(argv);
        } else {
            words.push(SCRIPT.into());
            words.extend(argv.into_iter().skip(1));
        }
        words
    }
}

impl Interpreter {
    fn named_in(first: &[u8]) -> Option<Interpreter> {
        let line = first.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
        let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        let (program, argument) = line.split_at(end);
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let argument = Some(argument.trim_ascii()).filter(|argument| !argument.is_empty()).map(text);
        (!program.is_empty()).then(|| Interpreter { program: text(program), argument })
    }

    fn is_shell(&self) -> bool {
        let name = |text: &OsStr| Path::new(text).file_name().unwrap_or_default().to_owned();
        let by_env = name(&self.program) == "env";
        let shell = if by_env { name(self.argument.as_deref().unwrap_or_default()) } else { name(&self.program) };
        ["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"].iter().any(|known| shell == *known)
    }
}

/// Whoever the child is may read and execute it; that it may execute a file that it was copied from is asked before.
fn seal(file: &mut File) -> io::Result<()> {
    fchmod(file.as_fd(), Mode::from_bits_truncate(0o555))?;
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&*file, FcntlArg::F_ADD_SEALS(seals))?;
    // An interpreter may go on where the descriptor stands instead of opening it anew.
    file.rewind()
}

struct Bytes<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Bytes<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Executable also where the machine makes memory files unexecutable unless asked; kernels before 6.3 do not know the flag.
fn new_memory_file() -> Result<File, Errno> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let name = CString::from(c"belfry-sealed");
    let executable = memfd_create(name.as_c_str(), flags | MFdFlags::from_bits_retain(libc::MFD_EXEC));
    let made = match executable {
        Err(Errno::EINVAL) => memfd_create(name.as_c_str(), flags),
        made => made,
    };
    made.map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(first: &str) -> Option<Vec<String>> {
        let interpreter = Some(Interpreter::named_in(first.as_bytes())?);
        let file = Arc::new(new_memory_file().unwrap());
        let sealed = Sealed { file, path: Some("/srv/x".into()), interpreter };
        let words = sealed.argv(vec!["/srv/x".into(), "a".into()]);
        Some(words.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn a_script_is_read_by_its_interpreter_from_the_descriptor() {
        let words = |first| argv(first).unwrap();
        assert_eq!(words("#!/bin/sh\ntrue\n"), ["/bin/sh", "-c", ". /dev/fd/4", "/srv/x", "a"]);
        assert_eq!(words("#! /bin/bash -e\n"), ["/bin/bash", "-e", "-c", ". /dev/fd/4", "/srv/x", "a"]);
        assert_eq!(words("#!/usr/bin/env bash\n"), ["/usr/bin/env", "bash", "-c", ". /dev/fd/4", "/srv/x", "a"]);
        assert_eq!(words("#!/usr/bin/python3 -u -O\n"), ["/usr/bin/python3", "-u -O", "/dev/fd/4", "a"]);
        assert_eq!(argv("\x7fELF"), None);
        assert_eq!(argv("#!\n"), None);
    }

    #[test]
    fn a_script_without_a_file_has_the_interpreter_that_is_asked_for() {
        let interpreter = |body: &str, asked| {
            let sealed = Sealed::script(body.as_bytes(), asked).unwrap();
            assert!(sealed.file.write_at(b"x", 0).is_err());
            sealed.interpreter().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(interpreter("echo", None), "/bin/bash");
        assert_eq!(interpreter("#!/bin/sh\necho", None), "/bin/sh");
        assert_eq!(interpreter("#!/bin/sh\necho", Some("/usr/bin/python3 -u")), "/usr/bin/python3");
    }

    #[test]
    fn what_is_sealed_cannot_be_changed_and_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "one").unwrap();
        let sealed = Sealed::copy(&path).unwrap();
        std::fs::write(&path, "two").unwrap();
        assert!(sealed.file.write_at(b"x", 0).is_err());
        assert!(sealed.file.set_len(0).is_err());
        let mut text = String::new();
        sealed.bytes().read_to_string(&mut text).unwrap();
        assert_eq!(text, "one");
        assert!(matches!(Sealed::copy(folder.path()), Err(SealError::NotAFile { .. })));
    }
}
