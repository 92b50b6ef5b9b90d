//! What a wrapped command has on its host: files for what it prints, groups of its user, values that the last one saved. One host, and a file
//! as its coordinator.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use assert_cmd::Command;
use belfry_testkit::{processes_with, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_belfry");
const MARK: &str = "BELFRY_TESTKIT";
const PATIENCE: Duration = Duration::from_secs(60);

struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("belfry-host-").tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// As the line of a crontab does.
    fn dcron(&self, parameters: &[&str], command: &str) -> Command {
        self.dcron_by(PROGRAM, &[], parameters, command)
    }

    /// Started by this program, after these words.
    fn dcron_by(&self, program: &str, words: &[&str], parameters: &[&str], command: &str) -> Command {
        let place = |name: &str| self.file(name).display().to_string();
        let mut call = Command::new(program);
        call.args(words).arg("wrap").args(parameters).args(["--", "sh", "-c", command]);
        call.env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.folder.path())
            .env("DCRON_COORD", format!("sqlite:{}", place("coordinator.db")))
            .env("DCRON_LIBDIR", place("lib"))
            .env("DCRON_LOGDIR", place("log"))
            .env(MARK, self.folder.path())
            .timeout(PATIENCE);
        call
    }

    /// Of the folder for what is printed.
    fn logs(&self) -> Vec<(String, String)> {
        let files = std::fs::read_dir(self.file("log")).into_iter().flatten().map(Result::unwrap);
        let mut logs: Vec<(String, String)> = files
            .map(|file| (file.file_name().into_string().unwrap(), std::fs::read_to_string(file.path()).unwrap()))
            .collect();
        logs.sort();
        logs
    }

    fn processes(&self) -> Vec<i32> {
        processes_with(&format!("{MARK}={}", self.folder.path().display()))
    }

    /// Those in the background.
    fn end_wrappers(&self) {
        let is_wrapper = |pid: &i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).nth(1) == Some(b"wrap")
        };
        for wrapper in self.processes().into_iter().filter(is_wrapper) {
            kill(Pid::from_raw(wrapper), Signal::SIGTERM).unwrap();
        }
    }
}

impl Drop for Machine {
    /// A wrapper in the background leaves its command to the shim: look until nobody is left.
    fn drop(&mut self) {
        for _ in 0..200 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            #[expect(clippy::disallowed_methods, reason = "nothing else goes on in this thread any more")]
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[track_caller]
fn done(call: &mut Command) -> (String, String) {
    let ran = call.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (printed, said) = (text(ran.stdout), text(ran.stderr));
    assert_eq!(ran.status.code(), Some(0), "{printed}{said}");
    (printed, said)
}

fn mode(file: &Path) -> u32 {
    std::fs::metadata(file).unwrap().mode() & 0o777
}

#[test]
fn what_two_runs_print_is_in_one_file_and_what_print_nothing_has_none() {
    let machine = Machine::new();
    // Another coordinator knows nothing of the first run.
    for word in ["one", "two"] {
        let coordinator = format!("DCRON_COORD=sqlite:{}", machine.file(word).display());
        let printed = done(&mut machine.dcron(&["DCRON_NAME=prints.%C", &coordinator], &format!("echo {word}")));
        assert_eq!(printed, (String::new(), String::new()), "cron has nothing to mail");
    }
    assert_eq!(machine.logs(), [("prints.20.stdout".to_owned(), "one\ntwo\n".to_owned())]);
    assert_eq!(mode(&machine.file("log/prints.20.stdout")) & !0o640, 0);
}

#[tokio::test]
async fn a_long_lived_process_leaves_its_log_and_no_other_file_unless_it_is_asked_to() {
    let machine = Machine::new();
    let command = "echo printed; echo said >&2; exec sleep 1000";
    done(&mut machine.dcron(&["DCRON_NAME=loop", "DCRON_LLAP=true"], command));
    done(&mut machine.dcron(&["DCRON_NAME=kept", "DCRON_LLAP=true", "DCRON_STDIOCAP=true"], command));
    for name in ["loop.dcron.log", "kept.stderr", "kept.stdout"] {
        let has_come = |(file, text): &(String, String)| file == name && (text.contains("said") || text == "printed\n");
        until("it has printed something", async || machine.logs().iter().any(has_come).then_some(())).await;
    }
    machine.end_wrappers();
    until("nothing is left", async || machine.processes().is_empty().then_some(())).await;
    let logs = machine.logs();
    let of = |name: &str| logs.iter().find(|(file, _)| file == name).map(|(_, text)| text.as_str());
    assert_eq!(
        logs.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>(),
        ["kept.dcron.log", "kept.stderr", "kept.stdout", "loop.dcron.log"]
    );
    assert_eq!((of("kept.stdout"), of("kept.stderr")), (Some("printed\n"), Some("said\n")));
    assert!(of("loop.dcron.log").is_some_and(|text| text.contains("said\n") && !text.contains("printed")), "{logs:?}");
}

#[test]
fn a_sixth_key_is_refused_and_the_five_before_it_stay() {
    let machine = Machine::new();
    let saves = "for n in 1 2 3 4 5 6; do echo K$n=$n > $DCRON_FIFO; done; echo K5=five > $DCRON_FIFO";
    let said = done(&mut machine.dcron(&["DCRON_NAME=keys.%Y"], saves)).1;
    assert!(said.contains("line 6 was not saved: `K6`: ") && said.contains("at most 5 keys"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let tells = &["DCRON_NAME=keys.%Y-%j", "DCRON_STDIOCAP=false"];
    let told = done(&mut machine.dcron(tells, "env | grep '^DCRON_K[0-9]' | sort")).0;
    assert_eq!(told, "DCRON_K1=1\nDCRON_K2=2\nDCRON_K3=3\nDCRON_K4=4\nDCRON_K5=five\n");
}

/// As with `>> /var/log/job.log 2>&1` on a disk that is full.
#[test]
fn what_the_wrapper_cannot_say_costs_the_command_nothing() {
    let machine = Machine::new();
    let nowhere = ["-c", "exec \"$0\" \"$@\" 2> /dev/full", PROGRAM];
    for (name, captures) in [("DCRON_NAME=files.%Y", "true"), ("DCRON_NAME=passed.%Y", "false")] {
        let captures = format!("DCRON_STDIOCAP={captures}");
        let command = "echo ZK=refused > $DCRON_FIFO; sleep 1; echo said >&2; echo printed; exit 3";
        let ran = machine.dcron_by("sh", &nowhere, &[name, &captures], command).output().unwrap();
        assert_eq!(ran.status.code(), Some(3), "{name}: {ran:?}");
    }
    // Nor does it change what is said by the exit code alone.
    let ran = machine.dcron_by("sh", &nowhere, &["DCRON_NAME=typo.%Y", "DCRON_TYPO=1"], "exit 0").output().unwrap();
    assert_eq!(ran.status.code(), Some(64), "{ran:?}");
}

#[test]
fn a_user_has_its_own_groups_and_none_of_the_wrappers() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can become somebody else");
        return;
    }
    let machine = Machine::new();
    let groups = std::fs::read_to_string("/etc/group").unwrap();
    let more = "belfry-one:x:4001:nobody\nbelfry-two:x:4002:root,nobody\nbelfry-three:x:4003:root\n";
    std::fs::write(machine.file("group"), groups + more).unwrap();
    // Seen by this one call only.
    let script = format!("mount --bind {} /etc/group && exec \"$0\" \"$@\"", machine.file("group").display());
    for (name, user, group, others) in [
        ("alone", "nobody", "nogroup", &["belfry-one", "belfry-two"][..]),
        ("group", "nobody:daemon", "daemon", &["belfry-one", "belfry-two", "nogroup"]),
    ] {
        let (named, user) = (format!("DCRON_NAME={name}.%Y"), format!("DCRON_USER={user}"));
        let parameters = [named.as_str(), &user, "DCRON_STDIOCAP=false"];
        // The wrapper itself is in the third group.
        let unshare = ["--mount", "setpriv", "--groups", "4003", "sh", "-c", &script, PROGRAM];
        let printed = done(&mut machine.dcron_by("unshare", &unshare, &parameters, "id -gn; id -Gn")).0;
        let (first, all) = printed.trim_end().split_once('\n').unwrap();
        let mut besides: Vec<&str> = all.split(' ').filter(|name| *name != group).collect();
        besides.sort_unstable();
        assert_eq!((first, &besides[..]), (group, others));
    }
}

#[test]
fn under_a_strict_umask_the_commands_user_reaches_its_fifo_all_the_same() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can become somebody else");
        return;
    }
    for is_users in [false, true] {
        let machine = Machine::new();
        std::fs::set_permissions(machine.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        if is_users {
            std::fs::create_dir(machine.file("lib")).unwrap();
            chown(machine.file("lib"), Some(65534), Some(65534)).unwrap();
        }
        let strict = ["-c", "umask 077; exec \"$0\" \"$@\"", PROGRAM];
        let parameters = ["DCRON_NAME=strict.%C", "DCRON_USER=nobody", "DCRON_STDIOCAP=false"];
        done(&mut machine.dcron_by("sh", &strict, &parameters, "echo A=1 > $DCRON_FIFO"));
        assert_eq!(mode(&machine.file("lib/fifo-0")), 0o711);
        assert_eq!(mode(&machine.file("lib")), if is_users { 0o755 } else { 0o711 });
        // What is there already stays as somebody wants it.
        std::fs::set_permissions(machine.file("lib/fifo-0"), PermissionsExt::from_mode(0o700)).unwrap();
        done(&mut machine.dcron_by("sh", &strict, &["DCRON_NAME=strict.%C%C"], "true"));
        assert_eq!(mode(&machine.file("lib/fifo-0")), 0o700);
    }
}

/// As nobody prepares them, who may write to both folders: root's wrapper is not to write to a file of root for it.
#[test]
fn root_writes_to_no_file_that_a_user_has_put_in_the_way_and_the_command_runs_all_the_same() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can become somebody else");
        return;
    }
    let machine = Machine::new();
    std::fs::set_permissions(machine.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for folder in ["lib", "log"] {
        std::fs::create_dir(machine.file(folder)).unwrap();
        chown(machine.file(folder), Some(65534), Some(65534)).unwrap();
    }
    let roots = machine.file("roots");
    std::fs::write(&roots, "as it was").unwrap();
    let parameters = |name| ["DCRON_USER=nobody", "DCRON_STICK=60", name];
    let command = "echo printed; echo SAVED=it > $DCRON_FIFO && echo ran >&2";
    let said = done(&mut machine.dcron(&parameters("DCRON_NAME=plain.%C"), command)).1;
    assert_eq!(said, "");
    let logs =
        [("plain.20.stderr".to_owned(), "ran\n".to_owned()), ("plain.20.stdout".to_owned(), "printed\n".to_owned())];
    assert_eq!(machine.logs(), logs);
    // Files of a host have its name in theirs.
    let of_host = |name: &str| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        format!("lib/{}", name.replace('.', &format!("@{}.", host.trim())))
    };
    assert!(machine.file(&of_host("plain.stick")).is_file());
    for link in ["log/linked.20.stdout", &of_host("linked.stick")] {
        symlink(&roots, machine.file(link)).unwrap();
    }
    let said = done(&mut machine.dcron(&parameters("DCRON_NAME=linked.%C"), command)).1;
    assert_eq!(said.matches("root does not follow it").count(), 2, "{said}");
    assert_eq!(std::fs::read_to_string(machine.file("log/linked.20.stderr")).unwrap(), "ran\n");
    // What can be refused before anything is claimed is.
    for (name, link) in [("DCRON_NAME=alone", &*of_host("alone.lock")), ("DCRON_NAME=told", "log/told.dcron.log")] {
        symlink(&roots, machine.file(link)).unwrap();
        let ran = machine.dcron(&[name, "DCRON_LLAP=true"], "exit 0").output().unwrap();
        assert_eq!(ran.status.code(), Some(71), "{ran:?}");
    }
    std::fs::rename(machine.file("lib/fifo-0"), machine.file("lib/before")).unwrap();
    std::fs::create_dir(machine.file("lib/fifo-0")).unwrap();
    chown(machine.file("lib/fifo-0"), Some(65534), None).unwrap();
    let ran = machine.dcron(&parameters("DCRON_NAME=fifo.%C"), "exit 0").output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.code() == Some(71) && said.contains("somebody else may write to it"), "{said}");
    assert_eq!(std::fs::read_to_string(&roots).unwrap(), "as it was");
}
