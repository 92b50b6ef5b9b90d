//! Finds out where groups may be made: below the group that this process is in, in version 2 if it has the controller, else in
//! version 1.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Controller, Version};

/// A folder in which each run gets a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub version: Version,
    pub folder: PathBuf,
}

/// Where this process stands on version 2; a group that has processes cannot hand controllers down.
const OWN_LEAF: &str = "agent";

pub(super) fn find(name: &str) -> Vec<(Controller, Result<Place, String>)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let tree = second_version(&mounts, &own).map(|group| {
        let handed_down = hand_down(&group);
        (group, handed_down)
    });
    let place = |controller: Controller| {
        let mut why = "the machine has no such controller, or it is not mounted here".to_owned();
        if let Some((group, handed_down)) = &tree
            && group.has(controller)
        {
            match handed_down {
                Ok(()) => match folder_for_runs(Version::V2, group.folder.join(name)) {
                    Ok(place) => return Ok(place),
                    Err(cause) => why = cause.to_string(),
                },
                Err(cause) => why = cause.clone(),
            }
        } else if let Some(folder) = first_version(&mounts, &own, controller) {
            match folder_for_runs(Version::V1, folder.join(name)) {
                Ok(place) => return Ok(place),
                Err(cause) => why = format!("{}: {cause}", folder.display()),
            }
        }
        Err(why)
    };
    Controller::ALL.map(|controller| (controller, place(controller))).into()
}

/// The group of version 2 that this process is in.
struct Group {
    folder: PathBuf,
    controllers: String,
}

impl Group {
    fn has(&self, controller: Controller) -> bool {
        self.controllers.split_whitespace().any(|name| name == controller.name())
    }
}

fn second_version(mounts: &str, own: &str) -> Option<Group> {
    let (root, point) = mounts.lines().find_map(|line| mount(line, "cgroup2", None))?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut folder = under(&root, &point, path)?;
    // A former start of an agent in the same group, as after an exec, has moved down already.
    if folder.file_name().is_some_and(|name| name == OWN_LEAF) {
        folder.pop();
    }
    let controllers = fs::read_to_string(folder.join("cgroup.controllers")).ok()?;
    (!controllers.trim().is_empty()).then_some(Group { folder, controllers })
}

fn first_version(mounts: &str, own: &str, controller: Controller) -> Option<PathBuf> {
    let (root, point) = mounts.lines().find_map(|line| mount(line, "cgroup", Some(controller.name())))?;
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let names = parts.next()?;
        names.split(',').any(|name| name == controller.name()).then(|| parts.next()).flatten()
    })?;
    under(&root, &point, path)
}

/// The groups that this process is in for a controller, its own one first, up to the outermost that is mounted here.
pub(super) fn own_groups(mounts: &str, own: &str, controller: Controller) -> Vec<(Version, PathBuf)> {
    let second = mounts.lines().find_map(|line| mount(line, "cgroup2", None)).and_then(|(root, point)| {
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        Some((Version::V2, under(&root, &point, path).unwrap_or_else(|| point.clone()), point))
    });
    let first = mounts.lines().find_map(|line| mount(line, "cgroup", Some(controller.name()))).map(|(_, point)| {
        (Version::V1, first_version(mounts, own, controller).unwrap_or_else(|| point.clone()), point)
    });
    let upwards = |(version, group, point): (Version, PathBuf, PathBuf)| {
        let inside = group.ancestors().take_while(|folder| folder.starts_with(&point));
        inside.map(|folder| (version, folder.to_owned())).collect::<Vec<_>>()
    };
    second.into_iter().chain(first).flat_map(upwards).collect()
}

/// Root and mount point of a line of mountinfo, if it is a file system of this kind with this option.
fn mount(line: &str, kind: &str, option: Option<&str>) -> Option<(String, PathBuf)> {
    let (place, source) = line.split_once(" - ")?;
    let mut source = source.split(' ');
    let is_kind = source.next()? == kind;
    let has_option = option.is_none_or(|option| source.nth(1).is_some_and(|all| all.split(',').any(|it| it == option)));
    let mut place = place.split(' ').skip(3);
    let (root, point) = (place.next()?.to_owned(), place.next()?.replace("\\040", " "));
    (is_kind && has_option).then(|| (root, point.into()))
}

/// The folder of a group's path; a container sees only a part of the tree mounted.
fn under(root: &str, point: &Path, path: &str) -> Option<PathBuf> {
    let inside = if root == "/" { path } else { path.strip_prefix(root).unwrap_or(path) };
    let folder = point.join(inside.trim_start_matches('/'));
    folder.is_dir().then_some(folder)
}

/// Lets groups below this one be limited. The root of all groups may have processes all the same; any other is left first.
fn hand_down(group: &Group) -> Result<(), String> {
    let is_root = !group.folder.join("cgroup.type").exists();
    let said = |cause: io::Error| format!("{}: {cause}", group.folder.display());
    if !is_root {
        move_own_processes(&group.folder)?;
    }
    for controller in Controller::ALL.into_iter().filter(|controller| group.has(*controller)) {
        fs::write(group.folder.join("cgroup.subtree_control"), format!("+{}", controller.name())).map_err(said)?;
    }
    Ok(())
}

/// This process and what it has started. Others are not ours to move.
fn move_own_processes(group: &Path) -> Result<(), String> {
    let said = |cause: io::Error| format!("{}: {cause}", group.display());
    let members = fs::read_to_string(group.join("cgroup.procs")).map_err(said)?;
    let me = std::process::id().to_string();
    if members.lines().any(|pid| pid != me) {
        return Err(format!(
            "{}: other processes are in the agent's group; start it as a service of its own (systemd: Delegate=yes)",
            group.display()
        ));
    }
    if members.trim().is_empty() {
        return Ok(());
    }
    let leaf = group.join(OWN_LEAF);
    match fs::create_dir(&leaf) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(said(cause)),
        Ok(()) | Err(_) => {}
    }
    fs::write(leaf.join("cgroup.procs"), me).map_err(said)
}

/// One of a former start is emptied: whoever was in its groups has been ended before.
fn folder_for_runs(version: Version, folder: PathBuf) -> io::Result<Place> {
    match fs::create_dir(&folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        Ok(()) | Err(_) => {}
    }
    remove_groups_in(&folder);
    if version == Version::V2 {
        for controller in Controller::ALL {
            // Those that are not handed down to us stay away.
            let _missing = fs::write(folder.join("cgroup.subtree_control"), format!("+{}", controller.name()));
        }
    }
    Ok(Place { version, folder })
}

/// Those that nobody is in.
pub(super) fn remove_groups_in(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            let _busy = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        30 23 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw\n\
        31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        32 23 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";

    #[test]
    fn mounts_are_told_apart_by_kind_and_controller() {
        let find = |kind, option| MOUNTS.lines().find_map(|line| mount(line, kind, option));
        assert_eq!(find("cgroup2", None), Some(("/".to_owned(), "/sys/fs/cgroup/unified".into())));
        assert_eq!(find("cgroup", Some("cpu")), Some(("/".to_owned(), "/sys/fs/cgroup/cpu,cpuacct".into())));
        assert_eq!(find("cgroup", Some("memory")), Some(("/docker/abc".to_owned(), "/sys/fs/cgroup/memory".into())));
        assert_eq!(find("cgroup", Some("pids")), None);
    }

    #[test]
    fn a_container_sees_its_part_of_the_tree_at_the_mount_point() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("inner")).unwrap();
        let at = |root, path| under(root, folder.path(), path);
        assert_eq!(at("/docker/abc", "/docker/abc/inner"), Some(folder.path().join("inner")));
        assert_eq!(at("/", "/inner"), Some(folder.path().join("inner")));
        assert_eq!(at("/", "/gone"), None);
    }
}
