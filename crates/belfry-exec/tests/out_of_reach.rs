//! A zygote that is not root, and a tree with a process that has become root, as by sudo: it cannot be ended, which is said, and its end is
//! waited for.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belfry_exec::{Deadline, ExitStatus, LastMoments, Prepared, Spawner, ZygoteCommand};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use support::{alive, in_time, shell, until, we_are_root};

const SETPRIV: &str = "/usr/bin/setpriv";
const MEMBERS: usize = 2;

/// What a user has who is not root.
struct Ground {
    folder: tempfile::TempDir,
    /// Becomes root, as sudo does.
    as_root: PathBuf,
    deadline: Deadline,
    spawner: Spawner,
}

impl Ground {
    /// None: this cannot be tried here.
    fn of_nobody() -> Option<Ground> {
        if !we_are_root() || !Path::new(SETPRIV).exists() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("for all");
        let copy = |from: &str, name: &str, mode: u32| {
            let to = folder.path().join(name);
            std::fs::copy(from, &to).expect("copy a program");
            std::fs::set_permissions(&to, std::fs::Permissions::from_mode(mode)).expect("its mode");
            to
        };
        let zygote = copy(env!("CARGO_BIN_EXE_belfry-zygote"), "zygote", 0o755);
        let as_root = copy(SETPRIV, "as-root", 0o4755);
        let stderr = folder.path().join("stderr");
        let as_nobody = format!("{SETPRIV} --reuid=65534 --regid=65534 --clear-groups");
        let start = format!("exec {as_nobody} {} 2> {}", zygote.display(), stderr.display());
        let zygote = ZygoteCommand { program: "/bin/sh".into(), args: vec!["-c".to_owned(), start] };
        let deadline = Deadline::new().expect("memory");
        let spawner = Spawner::start(zygote, deadline.clone()).expect("start the zygote");
        Some(Ground { folder, as_root, deadline, spawner })
    }

    fn put_off(&self, ask_ms: u64, kill_ms: u64) {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock"));
        let [ask, kill] = [ask_ms, kill_ms].map(|ms| now + Duration::from_millis(ms));
        self.deadline.put_off(LastMoments { ask, kill });
    }

    /// A shell of nobody, and below it one of root that waits.
    fn command(&self) -> Prepared {
        let waits = format!("for n in $(seq 600); do [ -e {} ] && exit; sleep 0.05; done", self.go().display());
        shell(&format!("{} --reuid=0 --regid=0 --clear-groups sh -c '{waits}'; exit 7", self.as_root.display()))
    }

    fn go(&self) -> PathBuf {
        self.folder.path().join("go")
    }

    fn told(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    async fn let_it_end_when_it_was_told(&self) {
        until("it is told", || self.told().contains("runs as another user")).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        std::fs::write(self.go(), "").expect("a file");
    }
}

#[tokio::test]
async fn what_has_become_another_user_is_told_of_once_and_its_end_is_waited_for() {
    let Some(ground) = Ground::of_nobody() else { return };
    let what = ground.command();
    let tag = what.tag.clone();
    let mut child = ground.spawner.spawn(what).await.expect("start");
    until("it has become root", || alive(&tag).len() > MEMBERS).await;
    let killer = child.killer();
    let ended = async {
        killer.end_tree(Duration::ZERO).await;
        assert!(ground.go().exists(), "told before it has ended");
    };
    in_time("the end of all", async { tokio::join!(ended, ground.let_it_end_when_it_was_told()) }).await;
    assert_eq!(in_time("its exit", child.wait()).await.status, ExitStatus::Signal(Signal::SIGKILL as i32));
    assert_eq!((alive(&tag).len(), ground.told().lines().count()), (0, 1), "{}", ground.told());
}

#[tokio::test]
async fn a_shim_says_so_too_and_waits() {
    let Some(ground) = Ground::of_nobody() else { return };
    ground.put_off(3_000, 4_000);
    let what = Prepared { exclusive: true, ..ground.command() };
    let tag = what.tag.clone();
    let mut child = ground.spawner.spawn(what).await.expect("start");
    until("it has become root", || alive(&tag).len() > MEMBERS).await;
    let ended = async {
        let exit = child.wait().await;
        assert!(ground.go().exists(), "told before it has ended");
        exit
    };
    let (exit, ()) = in_time("its exit", async { tokio::join!(ended, ground.let_it_end_when_it_was_told()) }).await;
    assert!(exit.past_deadline, "{exit:?}");
    assert_eq!((alive(&tag).len(), ground.told().lines().count()), (0, 1), "{}", ground.told());
}
