//! Whether the command's program is on this host, asked before anything is claimed. It refuses only what no start would take; what it
//! cannot judge, such as the rights of another user, is left to the start.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use belfry_exec::SpawnError;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};

/// Where a start would look for it.
pub(crate) struct Sought {
    pub program: Box<OsStr>,
    pub path: Box<OsStr>,
    pub directory: PathBuf,
    /// As this process, and not as another user.
    pub as_self: bool,
}

/// What is at one of the places.
enum Found {
    Nothing,
    /// Nobody may execute it.
    Closed,
    PerhapsIt,
}

impl Sought {
    /// It may wait for as long as a network mount is dead.
    pub(crate) fn look(&self) -> Result<(), SpawnError> {
        let program = || self.program.to_string_lossy().into_owned();
        if self.program.is_empty() {
            return Err(SpawnError::NotText { what: "the command" });
        }
        let is_path = self.program.as_bytes().contains(&b'/');
        let mut is_closed = false;
        for place in self.places(is_path) {
            match self.at(&place) {
                Found::Nothing => {}
                Found::Closed => is_closed = true,
                Found::PerhapsIt => return Ok(()),
            }
        }
        Err(match (is_closed, is_path) {
            (true, _) => SpawnError::NotExecutable {
                program: program(),
                reason: std::io::Error::from(Errno::EACCES).to_string(),
                advice: "the job's user needs the right to execute it: chmod +x, and +x on the folders above",
            },
            (false, true) => SpawnError::NoSuchFile { program: program() },
            (false, false) => {
                SpawnError::NotFound { program: program(), path_searched: self.path.to_string_lossy().into_owned() }
            }
        })
    }

    /// In the order of a start, which knows no empty folder of PATH.
    fn places(&self, is_path: bool) -> Vec<PathBuf> {
        let program = Path::new(&self.program);
        if is_path {
            return vec![self.directory.join(program)];
        }
        let folders = self.path.as_bytes().split(|byte| *byte == b':').filter(|folder| !folder.is_empty());
        folders.map(|folder| self.directory.join(OsStr::from_bytes(folder)).join(program)).collect()
    }

    fn at(&self, place: &Path) -> Found {
        let facts = match place.metadata() {
            Ok(facts) => facts,
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Found::Nothing;
            }
            Err(cause) if cause.kind() == ErrorKind::PermissionDenied && self.as_self => return Found::Closed,
            Err(_) => return Found::PerhapsIt,
        };
        if !facts.is_file() {
            return Found::Closed;
        }
        let is_for_nobody = facts.mode() & 0o111 == 0;
        let is_closed = faccessat(AT_FDCWD, place, AccessFlags::X_OK, AtFlags::AT_EACCESS) == Err(Errno::EACCES);
        if is_closed && (self.as_self || is_for_nobody) { Found::Closed } else { Found::PerhapsIt }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const HERE: &str = "first::absent:second:";

    fn ground() -> tempfile::TempDir {
        let base = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            write(base.path().join(name), "#!/nowhere\n").unwrap();
            set_permissions(base.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
        };
        for folder in ["first", "second", "first/folder", "first/both"] {
            create_dir(base.path().join(folder)).unwrap();
        }
        symlink("nowhere", base.path().join("first/loose")).unwrap();
        symlink("../second/both", base.path().join("first/link")).unwrap();
        file("first/closed", 0o644);
        file("second/both", 0o755);
        file("second/of-root", 0o700);
        file("here", 0o755);
        base
    }

    fn look(base: &tempfile::TempDir, program: &str, as_self: bool) -> Result<(), SpawnError> {
        let (program, path) = (Box::from(OsStr::new(program)), Box::from(OsStr::new(HERE)));
        Sought { program, path, directory: base.path().to_owned(), as_self }.look()
    }

    #[test]
    fn what_a_start_would_not_find_or_not_take_is_refused_in_its_words() {
        let base = ground();
        for as_self in [true, false] {
            let look = |program: &str| look(&base, program, as_self);
            for program in ["absent", "loose", "here"] {
                let refused = look(program).unwrap_err();
                assert!(refused.exit_code() == 127 && refused.to_string().contains(HERE), "{program}: {refused}");
            }
            for program in ["./absent", "first/loose", "here/below", "here/"] {
                assert!(matches!(look(program), Err(SpawnError::NoSuchFile { .. })), "{program}: {:?}", look(program));
            }
            for program in ["closed", "folder", "first/closed", "./first"] {
                let refused = look(program).unwrap_err();
                assert!(refused.exit_code() == 126 && refused.to_string().contains("chmod +x"), "{program}: {refused}");
            }
            assert_eq!(look("").unwrap_err().exit_code(), 126);
        }
    }

    #[test]
    fn what_a_start_may_take_is_left_to_it() {
        let base = ground();
        let long = "x".repeat(300);
        for as_self in [true, false] {
            for program in
                ["both", "link", "of-root", "first/link", "./here", "second/of-root", "/proc/self/exe", &long]
            {
                assert_eq!(look(&base, program, as_self), Ok(()), "{program}");
            }
        }
    }
}
