//! Which paths lie on file systems that can hang: there a start must not make the zygote wait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::clock;

/// Mount points of network and user-space file systems, read again now and then.
pub(super) struct Mounts {
    points: Vec<(PathBuf, bool)>,
    read_at: Option<Duration>,
}

const READ_AGAIN_AFTER: Duration = Duration::from_secs(5);

const LOCAL: [&str; 17] = [
    "bcachefs", "btrfs", "devtmpfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "proc", "ramfs",
    "rootfs", "squashfs", "tmpfs", "xfs", "zfs",
];

impl Mounts {
    pub(super) fn new() -> Mounts {
        Mounts { points: Vec::new(), read_at: None }
    }

    /// By the path as it is written: following links would itself hang. A link from a local to a network path is not
    /// noticed; jobs should name the real path.
    pub(super) fn may_hang(&mut self, path: &Path) -> bool {
        let now = clock::monotonic();
        if self.read_at.is_none_or(|read_at| now > read_at + READ_AGAIN_AFTER) {
            self.points = parse(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
            self.read_at = Some(now);
        }
        may_hang(&self.points, path)
    }
}

fn may_hang(points: &[(PathBuf, bool)], path: &Path) -> bool {
    let under = points.iter().filter(|(point, _)| path.starts_with(point));
    // Of equal points the later one covers the earlier.
    under.max_by_key(|(point, _)| point.as_os_str().len()).is_none_or(|(_, local)| !local)
}

fn parse(mountinfo: &str) -> Vec<(PathBuf, bool)> {
    let point = |line: &str| {
        let (mount, source) = line.split_once(" - ")?;
        let kind = source.split(' ').next()?;
        let place = mount.split(' ').nth(4)?.replace("\\040", " ");
        Some((PathBuf::from(place), LOCAL.contains(&kind)))
    };
    mountinfo.lines().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_decides_and_the_unknown_counts_as_able_to_hang() {
        let points = parse(
            "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             22 21 0:5 / /srv rw shared:3 - nfs4 box:/srv rw\n\
             23 22 0:6 / /srv/local\\040disk rw - xfs /dev/sdb rw\n",
        );
        for (path, expected) in [
            ("/bin/true", false),
            ("/srv", true),
            ("/srv/a/b", true),
            ("/srvx", false),
            ("/srv/local disk/c", false),
            ("./x", true),
        ] {
            assert_eq!(may_hang(&points, Path::new(path)), expected, "{path}");
        }
    }
}
