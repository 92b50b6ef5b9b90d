//! The wrapper's folders as root meets them, whose crontab may name one of the user that the command runs as. Whoever may write to a folder may put
//! a link there in place of a file, or of a folder below it, and root would write to whatever it names. So root follows links only where root alone
//! can have made them, or has made them itself; and it writes only to files that have no other name.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions, set_permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::geteuid;

/// It is the same one for as long as this lives, whatever becomes of its path.
pub(crate) struct Folder {
    descriptor: OwnedFd,
    facts: FileStat,
    /// This is root, and somebody else may have put there what is found there.
    is_others: bool,
}

const FOR_ALL: Mode = Mode::from_bits_truncate(0o755);
/// Through which others reach what is theirs, and see nothing else.
const PASS_THROUGH: Mode = Mode::from_bits_truncate(0o711);
/// As many as the kernel follows.
const LINKS_MAX: usize = 40;

enum Entry {
    Folder(Folder),
    Link(PathBuf),
}

impl Folder {
    /// Made if missing.
    pub(crate) fn make(path: &Path) -> io::Result<Folder> {
        Folder::make_with(path, FOR_ALL)
    }

    /// The same, if nobody else can put anything there.
    pub(crate) fn make_own(path: &Path) -> io::Result<Folder> {
        let made = Folder::make_with(path, PASS_THROUGH)?;
        let is_own = made.facts.st_uid == geteuid().as_raw() && !may_be_written_by_others(&made.facts);
        is_own.then_some(made).ok_or_else(|| io::Error::other("it is there already, and somebody else may write to it"))
    }

    fn make_with(path: &Path, mode: Mode) -> io::Result<Folder> {
        let mut ahead: VecDeque<OsString> = names(&std::path::absolute(path)?).collect();
        let mut folder = Folder::root()?;
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            match folder.enter(&name, mode)? {
                Entry::Folder(next) => folder = next,
                Entry::Link(_) if links == LINKS_MAX => return Err(Errno::ELOOP.into()),
                Entry::Link(to) => {
                    links += 1;
                    names(&to).rev().for_each(|name| ahead.push_front(name));
                    if to.is_absolute() {
                        // Who moved a link of root's to here has chosen where it leads as well.
                        folder = Folder { is_others: folder.is_others, ..Folder::root()? };
                    }
                }
            }
        }
        Ok(folder)
    }

    fn root() -> io::Result<Folder> {
        let descriptor = open("/", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Folder::of(descriptor, false)?)
    }

    fn of(descriptor: OwnedFd, is_below_others: bool) -> nix::Result<Folder> {
        let facts = fstat(&descriptor)?;
        let is_roots_alone = facts.st_uid == 0 && !may_be_written_by_others(&facts);
        Ok(Folder { is_others: is_below_others || geteuid().is_root() && !is_roots_alone, descriptor, facts })
    }

    fn enter(&self, name: &OsStr, mode: Mode) -> io::Result<Entry> {
        let what_it_is = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // As a folder first, or nobody would mount what is mounted when it is needed.
        let look = || match openat(&self.descriptor, name, what_it_is | OFlag::O_DIRECTORY, Mode::empty()) {
            Err(Errno::ENOTDIR | Errno::ELOOP) => openat(&self.descriptor, name, what_it_is, Mode::empty()),
            folder => folder,
        };
        let mut is_new = false;
        let found = match look() {
            Err(Errno::ENOENT) => match mkdirat(&self.descriptor, name, mode) {
                Ok(()) => {
                    is_new = true;
                    look()?
                }
                Err(Errno::EEXIST) => look()?,
                Err(errno) => return Err(errno.into()),
            },
            found => found?,
        };
        let mut found = Folder::of(found, self.is_others)?;
        if is_new {
            found.open_to_pass()?;
        }
        let kind = SFlag::from_bits_truncate(found.facts.st_mode) & SFlag::S_IFMT;
        if kind == SFlag::S_IFLNK {
            let is_roots = found.facts.st_uid == 0 && found.facts.st_nlink == 1;
            let may_be_followed = !self.is_others || is_roots;
            // The link itself, not what stands at its name by now.
            let to = may_be_followed.then(|| readlinkat(&found.descriptor, OsStr::new("")));
            return Ok(Entry::Link(to.ok_or_else(|| not_followed(name))??.into()));
        }
        if kind == SFlag::S_IFDIR { Ok(Entry::Folder(found)) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// Just made, under a umask that may be strict: the command's user passes through it to the FIFO. Left as it is if it is not the new one,
    /// which is our own and empty.
    fn open_to_pass(&mut self) -> io::Result<()> {
        let is = Mode::from_bits_truncate(self.facts.st_mode);
        let is_folder = SFlag::from_bits_truncate(self.facts.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
        if !is_folder || self.facts.st_uid != geteuid().as_raw() || is.contains(PASS_THROUGH) {
            return Ok(());
        }
        if self.is_others && std::fs::read_dir(self.place())?.next().is_some() {
            return Ok(());
        }
        set_permissions(self.place(), Permissions::from_mode((is | PASS_THROUGH).bits()))?;
        self.facts = fstat(&self.descriptor)?;
        Ok(())
    }

    /// For writing, made if missing. `how`: what else there is to say.
    pub(crate) fn file(&self, name: &str, how: OFlag, mode: u32) -> io::Result<File> {
        let how = how | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_CLOEXEC;
        if !self.is_others {
            return Ok(openat(&self.descriptor, name, how, Mode::from_bits_truncate(mode))?.into());
        }
        // A FIFO would keep root waiting for a reader.
        let careful = how | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = match openat(&self.descriptor, name, careful, Mode::from_bits_truncate(mode)) {
            Err(Errno::ELOOP) => return Err(not_followed(OsStr::new(name))),
            opened => File::from(opened?),
        };
        let facts = file.metadata()?;
        if !facts.is_file() || facts.nlink() > 1 {
            return Err(io::Error::other(
                "others than root may write to its folder, and it is no file, or one with other names",
            ));
        }
        Ok(file)
    }

    /// For reading. What others have put there is read only if it is a file: to open anything else may do something, or wait.
    pub(crate) fn read(&self, name: &str) -> io::Result<File> {
        if !self.is_others {
            return Ok(openat(&self.descriptor, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?.into());
        }
        let what_it_is = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = File::from(openat(&self.descriptor, name, what_it_is, Mode::empty())?);
        if !found.metadata()?.is_file() {
            return Err(io::Error::other("others than root may write to its folder, and it is no file"));
        }
        // The same one, whatever stands at its name by now.
        File::open(place_of(&found))
    }

    /// A path to it that leads nowhere else, in this process.
    pub(crate) fn place(&self) -> PathBuf {
        place_of(&self.descriptor)
    }
}

fn place_of(opened: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", opened.as_raw_fd()).into()
}

fn may_be_written_by_others(facts: &FileStat) -> bool {
    Mode::from_bits_truncate(facts.st_mode).intersects(Mode::S_IWGRP | Mode::S_IWOTH)
}

fn not_followed(name: &OsStr) -> io::Error {
    let name = name.display();
    io::Error::other(format!("{name} is a link where others than root may make some, and root does not follow it"))
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, hard_link, read_to_string, write};
    use std::io::Write;
    use std::os::unix::fs::{chown, lchown, symlink};

    use nix::unistd::mkfifo;

    use super::*;

    const APP: u32 = 65534;

    /// A file of root, and beside it a folder of the user that a command runs as. None: only root can make these.
    struct Ground {
        base: tempfile::TempDir,
        of_app: PathBuf,
        roots: PathBuf,
    }

    impl Ground {
        fn new() -> Option<Ground> {
            if !geteuid().is_root() {
                return None;
            }
            let base = tempfile::tempdir().unwrap();
            let (of_app, roots) = (base.path().join("app"), base.path().join("roots"));
            create_dir(&of_app).unwrap();
            chown(&of_app, Some(APP), Some(APP)).unwrap();
            write(&roots, "as it was").unwrap();
            Some(Ground { base, of_app, roots })
        }

        fn append(&self, name: &str) -> io::Result<()> {
            Folder::make(&self.of_app)?.file(name, OFlag::O_APPEND, 0o640)?.write_all(b"printed\n")
        }
    }

    #[test]
    fn root_appends_to_files_in_a_folder_of_another_user() {
        let Some(ground) = Ground::new() else { return };
        ground.append("out").unwrap();
        ground.append("out").unwrap();
        let out = ground.of_app.join("out");
        assert_eq!(read_to_string(&out).unwrap(), "printed\nprinted\n");
        let facts = out.metadata().unwrap();
        assert_eq!((facts.uid(), facts.mode() & 0o777), (0, 0o640));
        chown(&out, Some(APP), None).unwrap();
        ground.append("out").unwrap();
        Folder::make(&ground.of_app.join("a/b")).unwrap();
        assert!(ground.of_app.join("a/b").is_dir());
    }

    #[test]
    fn root_follows_no_link_that_a_user_has_made() {
        let Some(ground) = Ground::new() else { return };
        symlink(&ground.roots, ground.of_app.join("link")).unwrap();
        symlink(ground.base.path().join("nowhere"), ground.of_app.join("loose")).unwrap();
        hard_link(&ground.roots, ground.of_app.join("twin")).unwrap();
        mkfifo(&ground.of_app.join("fifo"), Mode::S_IRWXU).unwrap();
        for name in ["link", "loose", "twin", "fifo"] {
            let refused = ground.append(name).unwrap_err().to_string();
            assert!(["link", "loose"].contains(&name) == refused.contains("does not follow"), "{name}: {refused}");
        }
        assert_eq!(read_to_string(&ground.roots).unwrap(), "as it was");
        assert!(!ground.base.path().join("nowhere").exists());
        symlink(ground.base.path(), ground.of_app.join("folder")).unwrap();
        lchown(ground.of_app.join("folder"), Some(APP), Some(APP)).unwrap();
        for below in ["folder", "folder/new", "folder/../new"] {
            assert!(Folder::make(&ground.of_app.join(below)).is_err(), "{below}");
        }
        assert!(!ground.base.path().join("new").exists());
    }

    #[test]
    fn root_follows_its_own_links_where_nobody_else_can_make_any() {
        if !geteuid().is_root() {
            return;
        }
        let place = PathBuf::from(format!("/var/lib/belfry-test-{}", std::process::id()));
        create_dir(&place).unwrap();
        create_dir(place.join("far")).unwrap();
        symlink("far", place.join("near")).unwrap();
        symlink(place.join("far/real"), place.join("far/out")).unwrap();
        let written = Folder::make(&place.join("near")).and_then(|near| near.file("out", OFlag::O_APPEND, 0o640));
        let is_real = place.join("far/real").is_file();
        std::fs::remove_dir_all(&place).unwrap();
        assert!(written.is_ok() && is_real, "{written:?}");
    }

    /// As an administrator's in `/var/log`, which a group may write to on some systems.
    #[test]
    fn root_follows_a_link_of_its_own_also_where_others_may_make_some() {
        let Some(ground) = Ground::new() else { return };
        let far = ground.base.path().join("far");
        create_dir(&far).unwrap();
        symlink(&far, ground.of_app.join("near")).unwrap();
        Folder::make(&ground.of_app.join("near/below")).unwrap();
        assert!(far.join("below").is_dir());
        // What is found behind it is treated with the same care.
        symlink(&ground.roots, far.join("out")).unwrap();
        let through = Folder::make(&ground.of_app.join("near")).unwrap();
        assert!(through.file("out", OFlag::O_APPEND, 0o640).is_err());
        lchown(ground.of_app.join("near"), Some(APP), Some(APP)).unwrap();
        assert!(Folder::make(&ground.of_app.join("near")).is_err(), "a link of the user");
    }

    #[test]
    fn root_reads_files_of_others_and_opens_nothing_else() {
        let Some(ground) = Ground::new() else { return };
        write(ground.of_app.join("stick"), "7").unwrap();
        symlink("/dev/zero", ground.of_app.join("device")).unwrap();
        mkfifo(&ground.of_app.join("fifo"), Mode::S_IRWXU).unwrap();
        let read = |name: &str| Folder::make(&ground.of_app)?.read(name);
        assert_eq!(io::read_to_string(read("stick").unwrap()).unwrap(), "7");
        for name in ["device", "fifo", "absent"] {
            assert!(read(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_folder_that_somebody_else_has_made_or_may_write_to_is_not_our_own() {
        let base = tempfile::tempdir().unwrap();
        let own = base.path().join("own");
        assert!(Folder::make_own(&own).is_ok());
        set_permissions(&own, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(Folder::make_own(&own).is_err());
        let Some(ground) = Ground::new() else { return };
        assert!(Folder::make_own(&ground.of_app).is_err());
    }
}
