//! The wrapper for system cron, as real processes of several hosts on real coordinators.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use belfry_testkit::chaos::Backend;
use belfry_testkit::{Call, Ground, Holdings, Host, Seed, until};
use nix::sys::signal::Signal;
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_belfry");
const HOSTS: usize = 5;

fn hosts(ground: &Ground) -> Vec<Host> {
    (1..=HOSTS).map(|number| ground.host(PROGRAM, &format!("h{number}"))).collect()
}

/// An instance that is the same all through a test.
fn name(name: &str) -> String {
    format!("DCRON_NAME={name}.%Y")
}

fn lines(ground: &Ground) -> Vec<String> {
    let text = std::fs::read_to_string(ground.file("lines")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// A command that writes a line with these words.
fn writes(ground: &Ground, words: &str, then: &str) -> String {
    format!("echo {words} >> {}; {then}", ground.file("lines").display())
}

async fn each_instance_runs_once(backend: Backend) {
    let ground = Ground::start(backend);
    let hosts = hosts(&ground);
    let instances: u64 = std::env::var("BELFRY_INSTANCES").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let mut seed = Seed::from_env(7);
    let mut calls: Vec<(u64, Call)> = Vec::new();
    for instance in 0..instances {
        let then = ["true", "true", "true", "sleep 1", "sleep 5"][seed.below(5) as usize];
        let rule = ["", "CRASH", "ABEXIT"][seed.below(3) as usize];
        for host in &hosts {
            let delay_ms = seed.below(3000);
            let command = writes(&ground, &format!("{instance} $HOST"), then);
            // The delay is part of the call, as with a host whose cron is late.
            let late = format!("sleep {}.{:03}; exec \"$@\"", delay_ms / 1000, delay_ms % 1000);
            let call = late_call(host, &late, &name(&format!("i{instance}")), rule, &command);
            calls.push((instance, call));
        }
        // So many processes at once as a machine takes.
        while calls.iter_mut().map(|(_, call)| usize::from(!call.has_ended())).sum::<usize>() > 60 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for (instance, call) in &mut calls {
        assert_eq!(call.ends().await, Some(0), "instance {instance}: {}", call.said());
    }
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for line in lines(&ground) {
        *runs.entry(line.split_whitespace().next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    let expected: BTreeMap<String, usize> = (0..instances).map(|instance| (instance.to_string(), 1)).collect();
    assert_eq!(runs, expected);
    // On a line of its own, for whoever reads figures.
    let figure = format!("instances on {}, each run once on {HOSTS} hosts", backend.name());
    println!("\n{}", json!({"figure": figure, "value": runs.len(), "at_least": 200}));
    // A host that comes when all is done finds that out, and does nothing.
    let mut late = hosts[0].call(&[&name("i0")], &["bash", "-c", &writes(&ground, "late", "true")]);
    assert_eq!(late.ends().await, Some(0));
    assert_eq!(lines(&ground).len() as u64, instances);
    late_hosts_find_what_is_done(&ground, &hosts).await;
}

/// One that comes ten minutes late, as after a reboot, and one whose clock is 90 seconds behind; instances are as coarse as the schedule.
async fn late_hosts_find_what_is_done(ground: &Ground, hosts: &[Host]) {
    let before = lines(ground).len();
    for (host, format, clock, runs) in [
        (0, "%F_%H", "10:00:05", true),
        (1, "%F_%H", "10:10:05", false),
        (2, "%F_%H", "11:00:01", true),
        (3, "%F_%H", "10:58:31", false),
        (0, "%F_%H%M", "12:00:00", true),
        (0, "%F_%H%M", "12:01:00", true),
        (4, "%F_%H%M", "12:00:30", false),
        (3, "%F_%H%M", "12:02:00", true),
    ] {
        let before = lines(ground).len();
        let parameters = [format!("DCRON_NAME=late.{format}"), "DCRON_TTL=15".to_owned()];
        let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
        let command = writes(ground, "$HOST", "true");
        let mut call = hosts[host].call_at(&format!("2026-03-01 {clock}"), &parameters, &["bash", "-c", &command]);
        assert_eq!(call.ends().await, Some(0), "{clock}: {}", call.said());
        assert_eq!(lines(ground).len() - before, usize::from(runs), "{format} at {clock}");
    }
    assert_eq!(lines(ground)[before..], ["h1", "h3", "h1", "h1", "h4"]);
}

fn late_call(host: &Host, late: &str, name: &str, rule: &str, command: &str) -> Call {
    // As long as users have it: nobody is to be held dead here, however many processes share this machine.
    host.shell(late, &[name, &format!("DCRON_RETRYON={rule}"), "DCRON_TTL=15"], &["bash", "-c", command])
}

#[tokio::test(flavor = "multi_thread")]
async fn each_instance_runs_once_on_etcd() {
    each_instance_runs_once(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_instance_runs_once_on_zookeeper() {
    each_instance_runs_once(Backend::ZooKeeper).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_instance_runs_once_on_postgresql() {
    each_instance_runs_once(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_instance_runs_once_on_mariadb() {
    each_instance_runs_once(Backend::MariaDb).await;
}

/// Kills the wrapper of the host that has the instance, with all of its process group.
fn kill_group(call: &Call) {
    call.signal_group(Signal::SIGKILL);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_the_death_of_a_host_is_as_the_rule_says() {
    let ground = Ground::start(Backend::Etcd);
    let hosts = hosts(&ground);
    let witness = Holdings::listen().await;
    for (rule, starts) in [("", 1), ("CRASH", 2), ("ABEXIT", 2)] {
        let hold = witness.hold(&format!("rule{rule} $HOST $BELFRY_ATTEMPT $$"));
        let of_rule = format!("rule{rule}");
        let seen = || witness.all().into_iter().filter(|held| held.words[0] == of_rule).collect::<Vec<_>>();
        let parameters = [name(&format!("job{rule}")), format!("DCRON_RETRYON={rule}")];
        let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
        let command = ["bash", "-c", &format!("{hold} && exec sleep 1000")];
        let mut first = hosts[0].call(&parameters, &command);
        until("the first host runs it", async || (seen().len() == 1).then_some(())).await;
        let mut second = hosts[1].call(&parameters, &command);
        let mut third = hosts[2].call(&parameters, &command);
        if starts == 1 {
            assert_eq!(second.ends().await, Some(0), "nobody waits for what is started at most once");
        } else {
            // One may wait, since DCRON_MAXRETRY is 2.
            let one_stays = until("one leaves", async || {
                let left = [second.has_ended(), third.has_ended()];
                left.contains(&true).then_some(left != [true, true])
            });
            assert!(one_stays.await);
        }
        kill_group(&first);
        first.ends().await;
        until("the tree is gone with its wrapper", async || seen()[0].to.is_some().then_some(())).await;
        if starts == 2 {
            until("the other host starts it", async || (seen().len() == 2).then_some(())).await;
            let all = seen();
            assert!(all[0].to.unwrap() < all[1].from, "never both at once: {all:?}");
            assert_eq!(all[1].words[2], "2", "the number of the attempt is known to the host that takes over");
            let waiting = if second.has_ended() { &third } else { &second };
            kill_group(waiting);
            until("its tree is gone too", async || seen()[1].to.is_some().then_some(())).await;
        }
        // Whoever comes now starts nothing: all attempts are used up.
        let mut late = hosts[3].call(&parameters, &command);
        assert_eq!(late.ends().await, Some(0), "{}", late.said());
        assert_eq!(seen().len(), starts, "{rule}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abnormal_exit_is_tried_again_where_it_was_and_crash_leaves_it() {
    let ground = Ground::start(Backend::Postgres);
    let host = ground.host(PROGRAM, "h1");
    for (rule, attempts) in [("", 1), ("CRASH", 1), ("ABEXIT", 3)] {
        let command = writes(&ground, &format!("x{rule} $BELFRY_ATTEMPT"), "exit 7");
        let parameters = [name(&format!("x{rule}")), format!("DCRON_RETRYON={rule}"), "DCRON_MAXRETRY=3".to_owned()];
        let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
        assert_eq!(host.call(&parameters, &["bash", "-c", &command]).ends().await, Some(7));
        let expected: Vec<String> = (1..=attempts).map(|attempt| format!("x{rule} {attempt}")).collect();
        let of_rule: Vec<String> =
            lines(&ground).into_iter().filter(|line| line.split(' ').next() == Some(&format!("x{rule}"))).collect();
        assert_eq!(of_rule, expected);
    }
}

/// Its number is written when its time has come, not before the wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn who_dies_between_two_attempts_has_used_up_only_what_ran() {
    let ground = Ground::start(Backend::Etcd);
    let hosts = [ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2")];
    let parameters = [&name("between"), "DCRON_RETRYON=ABEXIT", "DCRON_MAXRETRY=3"];
    let command = writes(&ground, "$HOST $BELFRY_ATTEMPT", "exit 7");
    let first = hosts[0].call(&parameters, &["bash", "-c", &command]);
    until("the second attempt has failed", async || (lines(&ground).len() == 2).then_some(())).await;
    // The next one follows after two seconds.
    tokio::time::sleep(Duration::from_millis(500)).await;
    kill_group(&first);
    let mut second = hosts[1].call(&parameters, &["bash", "-c", &command]);
    assert_eq!(second.ends().await, Some(7), "{}", second.said());
    assert_eq!(lines(&ground), ["h1 1", "h1 2", "h2 3"]);
}

/// What is known beforehand to keep a host from running it keeps it from claiming it.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_could_not_run_it_leaves_it_to_the_others() {
    let ground = Ground::start(Backend::Etcd);
    let (broken, sound) = (ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2"));
    // A folder that looks as if it could be written to.
    std::fs::create_dir_all(broken.lib()).unwrap();
    let fifos = broken.lib().join(format!("fifo-{}", nix::unistd::geteuid()));
    std::os::unix::fs::symlink("/proc", fifos).unwrap();
    let command = writes(&ground, "$HOST", "true");
    let mut call = broken.call(&[&name("broken")], &["bash", "-c", &command]);
    assert_eq!(call.ends().await, Some(71), "{}", call.said());
    assert!(call.said().contains("DCRON_LIBDIR"), "{}", call.said());
    assert_eq!(sound.call(&[&name("broken")], &["bash", "-c", &command]).ends().await, Some(0));
    assert_eq!(lines(&ground), ["h2"]);
}

/// As on a host where a package is not installed yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_the_program_leaves_it_to_those_that_have_it() {
    let ground = Ground::start(Backend::Etcd);
    let hosts: Vec<Host> = ["h1", "h2", "h3"]
        .map(|name| {
            let mut host = ground.host(PROGRAM, name);
            let folder = ground.file(&format!("{name}-bin"));
            std::fs::create_dir(&folder).unwrap();
            host.env.push(("PATH".to_owned(), format!("{}:/usr/bin:/bin", folder.display())));
            host
        })
        .into();
    for (host, mode) in [("h2", 0o644), ("h3", 0o755)] {
        let program = ground.file(&format!("{host}-bin")).join("backup");
        std::fs::write(&program, format!("#!/bin/sh\n{}", writes(&ground, "$HOST", "true"))).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    for (rule, retry) in
        [("once", "DCRON_RETRYON="), ("crash", "DCRON_RETRYON=CRASH"), ("again", "DCRON_RETRYON=ABEXIT")]
    {
        for (host, code, says) in [(0, 127, "backup: not found"), (1, 126, "chmod +x"), (2, 0, "")] {
            let mut call = hosts[host].call(&[&name(rule), retry], &["backup"]);
            assert_eq!(call.ends().await, Some(code), "{rule}: {}", call.said());
            assert!(call.said().contains(says), "{rule}: {}", call.said());
        }
    }
    assert_eq!(lines(&ground), ["h3", "h3", "h3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_root_may_ask_for_is_refused_before_anything_is_claimed() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not root: nobody else can be become");
        return;
    }
    let ground = Ground::start(Backend::Etcd);
    let mut host = ground.host(PROGRAM, "h1");
    let lib = tempfile::tempdir().unwrap();
    std::fs::set_permissions(lib.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for folder in ["DCRON_LIBDIR", "DCRON_LOGDIR"] {
        host.env.push((folder.to_owned(), lib.path().display().to_string()));
    }
    // A limit of 8 GB, below which the wrapper itself has room enough.
    let as_nobody = "ulimit -v 8000000; exec setpriv --reuid=nobody --regid=nogroup --clear-groups \"$@\"";
    for (parameter, code, says) in [
        ("DCRON_USER=root", 64, "only root can become somebody else"),
        ("DCRON_USER=nobody:daemon", 64, "only root can take another group"),
        ("DCRON_RLIMIT_AS=9000", 64, "above the hard limit of 7812 MiB"),
        ("DCRON_RLIMIT_AS=1000", 0, ""),
    ] {
        let mut call = host.shell(as_nobody, &[&name("limit"), parameter], &["true"]);
        assert_eq!(call.ends().await, Some(code), "{parameter}: {}", call.said());
        assert!(call.said().contains(says), "{parameter}: {}", call.said());
    }
}

/// As date(1) does, but for what it would take for UTC without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_zone_is_read_as_date_reads_it_and_an_unknown_one_is_refused() {
    let ground = Ground::start(Backend::Etcd);
    let file = ground.file("zone");
    std::fs::copy("/usr/share/zoneinfo/Asia/Kolkata", &file).unwrap();
    let file = file.display().to_string();
    let nowhere = ground.file("nowhere").display().to_string();
    let with_colon = format!(":{file}");
    let zones = [
        (file.as_str(), Some("+0530")),
        (&with_colon, Some("+0530")),
        ("Asia/Kolkata", Some("+0530")),
        (":Asia/Kolkata", Some("+0530")),
        ("<+0530>-5:30", Some("+0530")),
        ("IST-5:30", Some("+0530")),
        ("", Some("+0000")),
        ("Nowhere/City", None),
        (&nowhere, None),
        ("/dev/null", None),
    ];
    for (number, (zone, offset)) in zones.into_iter().enumerate() {
        let mut host = ground.host(PROGRAM, "h1");
        host.env = vec![("TZ".to_owned(), zone.to_owned())];
        let mut call = host.call(&[&format!("DCRON_NAME=zone{number}.%Y%z")], &["bash", "-c", "date +%z"]);
        let code = if offset.is_some() { 0 } else { 64 };
        assert_eq!(call.ends().await, Some(code), "{zone}: {}", call.said());
        let Some(offset) = offset else {
            assert!(call.said().contains("TZ="), "{zone}: {}", call.said());
            continue;
        };
        let (logs, file) = (host.logs(), format!("zone{number}."));
        let printed = logs.lines().find(|line| line.contains(&file)).unwrap_or_default();
        assert!(printed.ends_with(&format!("{offset}.stdout: {offset}")), "{zone}: {logs}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_are_those_of_the_command_or_say_what_was_wrong() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let script = ground.file("not-executable");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).unwrap();
    let script = script.display().to_string();
    for (case, command, code, says) in [
        ("zero", vec!["true"], 0, ""),
        ("one", vec!["false"], 1, ""),
        ("much", vec!["sh", "-c", "exit 255"], 255, ""),
        ("signal", vec!["sh", "-c", "kill -USR1 $$"], 128 + 10, ""),
        ("nowhere", vec!["belfry-no-such-program"], 127, "not found"),
        ("closed", vec![script.as_str()], 126, "chmod +x"),
    ] {
        let mut call = host.call(&[&name(case)], &command);
        assert_eq!(call.ends().await, Some(code), "{case}: {}", call.said());
        assert!(call.said().contains(says), "{case}: {}", call.said());
    }
    for (parameters, code, says) in [
        (vec!["DCRON_NAME=plain"], 64, "does not change with time"),
        (vec!["DCRON_NAME=a.%Q"], 64, "`%Q`"),
        (vec!["DCRON_NAME=a.%F", "DCRON_TYPO=1"], 64, "DCRON_TYPO is not known"),
        (vec!["DCRON_RETRYON=CRASH"], 64, "DCRON_NAME is missing"),
        (vec!["DCRON_NAME=a", "DCRON_LLAP=true", "DCRON_ABSENT=run"], 64, "on every host"),
        (vec!["DCRON_NAME=a.%F", "DCRON_COORD=redis://h"], 64, "`redis` is not known"),
        (vec!["DCRON_NAME=a.%F", "DCRON_COORD=etcd://127.0.0.1:1", "DCRON_WAIT=1"], 75, "DCRON_ABSENT"),
        (
            vec!["DCRON_NAME=a.%F", "DCRON_USER=belfry-nobody"],
            64,
            "DCRON_USER: user belfry-nobody does not exist on this host; create it (useradd belfry-nobody) or name another one\n",
        ),
        (vec!["DCRON_NAME=a.%F", "DCRON_LIBDIR=/dev/null/lib"], 71, "make the folder /dev/null/lib"),
    ] {
        let mut call = host.call(&parameters, &["true"]);
        assert_eq!(call.ends().await, Some(code), "{parameters:?}: {}", call.said());
        assert!(call.said().contains(says), "{parameters:?}: {}", call.said());
    }
    let alone = [&name("alone"), "DCRON_COORD=etcd://127.0.0.1:1", "DCRON_WAIT=1", "DCRON_ABSENT=run"];
    let mut call = host.call(&alone, &["sh", "-c", "echo ran; exit 5"]);
    assert_eq!(call.ends().await, Some(5), "{}", call.said());
    let year = belfry_testkit::now().to_zoned(jiff::tz::TimeZone::UTC).year();
    assert_eq!(std::fs::read_to_string(host.log(&format!("alone.{year}.stdout"))).unwrap(), "ran\n");
    assert!(!host.log(&format!("alone.{year}.stderr")).exists(), "nothing was said there");
}

/// As while a program is being copied to its place.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_start_in_a_moment_is_tried_again() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let program = ground.file("program");
    std::fs::copy("/bin/true", &program).unwrap();
    let program_name = program.display().to_string();
    for (case, is_closed, code) in [("closed", true, 0), ("open", false, 126)] {
        let written_to = std::fs::File::options().append(true).open(&program).unwrap();
        let mut call = host.call(&[&name(case), "DCRON_TTL=6"], &[&program_name]);
        until("it is tried again", async || call.said().contains("it is tried again").then_some(())).await;
        if is_closed {
            drop(written_to);
        }
        assert_eq!(call.ends().await, Some(code), "{case}: {}", call.said());
    }
}

/// So late that the heartbeat of its claim is nearly half a TTL old.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_be_started_only_just_in_time_is_not_cut_off() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let program = ground.file("program");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let written_to = std::fs::File::options().append(true).open(&program).unwrap();
    let mut call = host.call(&[&name("just"), "DCRON_TTL=10"], &[&program.display().to_string(), "3"]);
    until("it is tried again", async || call.said().contains("it is tried again").then_some(())).await;
    tokio::time::sleep(Duration::from_millis(4300)).await;
    drop(written_to);
    assert_eq!(call.ends().await, Some(0), "{}", call.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_to_the_wrapper_reach_the_whole_tree() {
    let ground = Ground::start(Backend::Postgres);
    let host = ground.host(PROGRAM, "h1");
    for (signal, word, code) in
        [(Signal::SIGTERM, "TERM", 44), (Signal::SIGINT, "INT", 45), (Signal::SIGHUP, "HUP", 46)]
    {
        // A grandchild in a session of its own must hear of it too. What a shell starts in the background ignores INT, and a shell leaves it
        // at that; others do not.
        let file = ground.file("lines").display().to_string();
        let grandchild = format!(
            "sub line {{ open my $lines, '>>', '{file}'; print $lines \"$_[0]\\n\"; close $lines }} \
             $SIG{{{word}}} = sub {{ line('grandchild-{word}'); exit }}; line('up'); select(undef, undef, undef, 0.05) while 1"
        );
        std::fs::write(ground.file("grandchild"), &grandchild).unwrap();
        let grandchild = format!("setsid perl {} &", ground.file("grandchild").display());
        let goes_on = writes(&ground, "up", "while :; do sleep 0.05; done");
        let command = format!("{grandchild} trap 'wait; exit {code}' {word}; {goes_on}");
        let before = lines(&ground).len();
        let mut call = host.call(&[&name(word)], &["bash", "-c", &command]);
        until("both are ready", async || (lines(&ground).len() == before + 2).then_some(())).await;
        call.signal(signal);
        assert_eq!(call.ends().await, Some(code), "{word}: {}", call.said());
        assert_eq!(lines(&ground).last().unwrap(), &format!("grandchild-{word}"));
        until("nothing is left", async || host.wrappers().is_empty().then_some(())).await;
        until("no helper is left", async || ground.processes().is_empty().then_some(())).await;
    }
}

/// What it wrote a second before is kept, whether the command is killed or all of its host's processes are.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_command_has_saved_is_known_to_the_next_host() {
    let ground = Ground::start(Backend::ZooKeeper);
    let (first, second) = (ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2"));
    for (case, value, code) in [("command", "a=17", Some(128 + 9)), ("group", "b=18", None)] {
        let saves = format!("echo OFFSET={value} > $DCRON_FIFO; echo ZK=hidden > $DCRON_FIFO");
        let command = format!("{saves}; {}", writes(&ground, &format!("wrote {case}"), "exec sleep 1000"));
        let mut call = first.call(&[&name(&format!("keeps.{case}"))], &["bash", "-c", &command]);
        until("it has written", async || lines(&ground).contains(&format!("wrote {case}")).then_some(())).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(call.said().contains("would hide the parameter"), "{}", call.said());
        if case == "group" {
            kill_group(&call);
        } else {
            let is_sleep = |pid: &i32| {
                std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
            };
            for pid in ground.processes().into_iter().filter(is_sleep) {
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
            }
        }
        assert_eq!(call.ends().await, code, "{case}");
        let told = writes(&ground, "told $DCRON_OFFSET", "true");
        let next = format!("DCRON_NAME=keeps.{case}.%Y-%j");
        assert_eq!(second.call(&[&next], &["bash", "-c", &told]).ends().await, Some(0));
        assert_eq!(lines(&ground).last().unwrap(), &format!("told {value}"), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_into_the_fifo_blocks_its_writer_and_takes_no_memory() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let progress = ground.file("progress");
    let written = || std::fs::metadata(&progress).map_or(0, |file| file.len());
    // Of every thousandth line a dot tells; a million is written in all.
    let flood = format!(
        "for n in {{1..1000}}; do printf 'N=%s\\n' $(seq $((n*1000-999)) $((n*1000))) >&3; printf . >&4; done 3> $DCRON_FIFO 4> {}",
        progress.display()
    );
    let mut call = host.call(&[&name("flood"), "DCRON_TTL=60"], &["bash", "-c", &flood]);
    until("it writes", async || (written() > 0).then_some(())).await;
    // Nobody reads: the writer must stand still, with most of it still to write.
    call.signal(Signal::SIGSTOP);
    let mut last = written();
    until("the writer is blocked", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        (std::mem::replace(&mut last, written()) == last).then_some(())
    })
    .await;
    assert!(last < 900 && !call.has_ended(), "{last} thousand lines");
    call.signal(Signal::SIGCONT);
    let mut most_kib = 0;
    while !call.has_ended() {
        most_kib = most_kib.max(private_kib(call.pid()).unwrap_or(0));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(call.ends().await, Some(0), "{}", call.said());
    assert_eq!(written(), 1000);
    assert!(most_kib < 32 * 1024, "{most_kib} KiB");
    let told = writes(&ground, "$DCRON_N", "true");
    assert_eq!(host.call(&["DCRON_NAME=flood.%Y-%j"], &["bash", "-c", &told]).ends().await, Some(0));
    assert_eq!(lines(&ground), ["1000000"]);
}

fn private_kib(pid: i32) -> Option<u64> {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let of = |name: &str| {
        rollup.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
    };
    Some(of("Private_Dirty:")? + of("Private_Clean:")?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapper_that_is_cut_off_or_stopped_ends_its_tree_before_another_host_starts_it() {
    let ground = Ground::start(Backend::Postgres);
    let hosts: Vec<Host> = (1..=2).map(|number| ground.host_apart(PROGRAM, &format!("h{number}"))).collect();
    let witness = Holdings::listen().await;
    for (case, rule) in [("cut", "CRASH"), ("stopped", "CRASH"), ("cut-once", "")] {
        let seen = || witness.all().into_iter().filter(|held| held.words[0] == case).collect::<Vec<_>>();
        let hold = witness.hold(&format!("{case} $HOST"));
        let command = ["bash", "-c", &format!("{hold} && trap '' TERM && while :; do sleep 0.1; done")];
        let parameters = [name(case), format!("DCRON_RETRYON={rule}")];
        let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
        let mut first = hosts[0].call(&parameters, &command);
        until("it runs", async || (seen().len() == 1).then_some(())).await;
        let second = hosts[1].call(&parameters, &command);
        if case == "stopped" {
            first.signal(Signal::SIGSTOP);
        } else {
            hosts[0].cut();
        }
        until("its tree is ended", async || seen()[0].to.is_some().then_some(())).await;
        if rule == "CRASH" {
            until("the other host has it", async || (seen().len() == 2).then_some(())).await;
            let all = seen();
            assert!(all[0].to.unwrap() < all[1].from, "{case}: never both at once: {all:?}");
            assert_eq!(all[1].words[1], "h2");
        }
        first.signal(Signal::SIGCONT);
        hosts[0].heal();
        assert_eq!(first.ends().await, Some(76), "{}", first.said());
        drop(second);
        let starts = if rule == "CRASH" { 2 } else { 1 };
        assert_eq!(seen().len(), starts, "{case}");
    }
}

async fn long_lived(witness: &Holdings, hosts: &[Host]) {
    let hold = witness.hold("llap $HOST $BELFRY_FENCE");
    for host in hosts {
        let mut call = host.call(
            // Long enough that no owner is held dead because this machine is busy.
            &["DCRON_NAME=loop.%F_%H%M", "DCRON_LLAP=true", "DCRON_MAXRETRY=3", "DCRON_TTL=5"],
            &["bash", "-c", &format!("{hold} && exec sleep 1000")],
        );
        assert_eq!(call.ends().await, Some(0), "cron does not wait for it: {}", call.said());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_runs_once_and_moves_when_its_host_dies() {
    let ground = Ground::start(Backend::Etcd);
    let hosts = hosts(&ground);
    let witness = Holdings::listen().await;
    let running = || witness.all().into_iter().filter(|held| held.to.is_none()).collect::<Vec<_>>();
    for round in 0..4 {
        // As cron does each minute: those who have it or wait for it are there already.
        long_lived(&witness, &hosts).await;
        until("it runs", async || (running().len() == 1).then_some(())).await;
        until("as many wait as may", async || {
            let wrappers: usize = hosts.iter().map(|host| host.wrappers().len()).sum();
            (wrappers == 3).then_some(())
        })
        .await;
        let now = running().remove(0);
        let owner = hosts.iter().find(|host| host.name == now.words[1]).expect("one of the hosts");
        let wrapper = *owner.wrappers().first().expect("the wrapper of the host that has it");
        let signal = if round % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM };
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(wrapper), signal).unwrap();
        until("another host has it", async || {
            running().first().is_some_and(|held| held.words[1] != owner.name).then_some(())
        })
        .await;
    }
    let all = witness.all();
    for pair in all.windows(2) {
        assert!(pair[0].to.is_some_and(|to| to < pair[1].from), "never two at once: {pair:?}");
        assert!(pair[0].words[2].parse::<u64>().unwrap() < pair[1].words[2].parse::<u64>().unwrap());
    }
    assert_eq!(all.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_that_exits_is_started_again_where_it_was() {
    let ground = Ground::start(Backend::MariaDb);
    let hosts = [ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2")];
    for host in &hosts {
        let command = writes(&ground, "$HOST", "sleep 0.2");
        let mut call = host.call(&["DCRON_NAME=again", "DCRON_LLAP=true"], &["bash", "-c", &command]);
        assert_eq!(call.ends().await, Some(0));
    }
    until("it was started three times", async || (lines(&ground).len() >= 3).then_some(())).await;
    let on: Vec<String> = lines(&ground);
    assert!(on.iter().all(|host| *host == on[0]), "{on:?}");
}

/// At once, or when the delay is longer than the time for which a host is preferred.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_leaves_a_host_that_cannot_run_it() {
    for (stick, tries) in [(0, 1), (2, 3)] {
        let ground = Ground::start(Backend::Etcd);
        let hosts = [ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2")];
        let witness = Holdings::listen().await;
        let tries_of_first = || lines(&ground).len();
        let command = format!(
            "{hold}; [ $HOST = h2 ] && exec sleep 1000; echo $HOST >> {file}; exit 1",
            hold = witness.hold("llap $HOST"),
            file = ground.file("lines").display()
        );
        for host in &hosts {
            let parameters = ["DCRON_NAME=moves", "DCRON_LLAP=true", &format!("DCRON_STICK={stick}"), "DCRON_TTL=5"];
            assert_eq!(host.call(&parameters, &["bash", "-c", &command]).ends().await, Some(0));
            until("the first host has tried it", async || (tries_of_first() > 0).then_some(())).await;
        }
        let on_second = || witness.all().into_iter().any(|held| held.words[1] == "h2" && held.to.is_none());
        until("the other host has it", async || on_second().then_some(())).await;
        assert!((tries..=tries + 3).contains(&tries_of_first()), "{stick}: {:?}", lines(&ground));
        for pair in witness.all().windows(2) {
            assert!(pair[0].to.is_some_and(|to| to <= pair[1].from), "never two at once: {pair:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_that_it_ran_on_last_is_preferred() {
    let ground = Ground::start(Backend::Etcd);
    let (first, second) = (ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2"));
    let command = writes(&ground, "$HOST", "true");
    let parameters = |format: &str| [format!("DCRON_NAME=sticks.{format}"), "DCRON_STICK=60".to_owned()];
    let call = |host: &Host, format: &str| {
        let parameters = parameters(format);
        host.call(&[&parameters[0], &parameters[1]], &["bash", "-c", &command])
    };
    assert_eq!(call(&second, "%Y").ends().await, Some(0));
    // The other one is quicker, and waits all the same.
    let mut other = call(&first, "%Y-1");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(call(&second, "%Y-1").ends().await, Some(0));
    assert_eq!(other.ends().await, Some(0));
    assert_eq!(lines(&ground), ["h2", "h2"]);
    // It does not wait for a host that does not come.
    let mut alone = call(&first, "%Y-2");
    assert_eq!(alone.ends().await, Some(0));
    assert_eq!(lines(&ground).last().unwrap(), "h1");
}

#[tokio::test(flavor = "multi_thread")]
async fn as_another_user_with_a_limit_of_memory() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not root: nobody else can be become");
        return;
    }
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let parameters = [&name("user"), "DCRON_USER=nobody:daemon", "DCRON_RLIMIT_AS=512"];
    let mut call = host.call(&parameters, &["sh", "-c", "id -un; id -gn; ulimit -v; echo A=1 > $DCRON_FIFO"]);
    assert_eq!(call.ends().await, Some(0), "{}", call.said());
    let year = belfry_testkit::now().to_zoned(jiff::tz::TimeZone::UTC).year();
    let said = std::fs::read_to_string(host.log(&format!("user.{year}.stdout"))).unwrap();
    assert_eq!(said, "nobody\ndaemon\n524288\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_is_away_for_a_moment_costs_nothing() {
    let mut ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let command = writes(&ground, "up", "sleep 1.5; exit 3");
    let mut call = host.call(&[&name("restart"), "DCRON_TTL=10"], &["bash", "-c", &command]);
    until("it runs", async || (!lines(&ground).is_empty()).then_some(())).await;
    ground.kill();
    ground.restart();
    assert_eq!(call.ends().await, Some(3), "{}", call.said());
    let mut late = host.call(&[&name("restart")], &["bash", "-c", &command]);
    assert_eq!(late.ends().await, Some(0), "{}", late.said());
    assert_eq!(lines(&ground), ["up"]);
    until("nothing is left", async || ground.processes().is_empty().then_some(())).await;
}

/// The holder ends what it runs by its own TTL: nobody may go by a shorter one.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_different_ttls_never_run_it_at_once() {
    let ground = Ground::start(Backend::Etcd);
    let (first, second) = (ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2"));
    let witness = Holdings::listen().await;
    let command = format!("{} && trap '' TERM && while :; do sleep 0.1; done", witness.hold("$HOST"));
    let parameters = |ttl: &'static str| ["DCRON_NAME=ttls.%Y", "DCRON_RETRYON=CRASH", ttl];
    let holder = first.call(&parameters("DCRON_TTL=8"), &["bash", "-c", &command]);
    until("it runs", async || (witness.all().len() == 1).then_some(())).await;
    let _waits = second.call(&parameters("DCRON_TTL=2"), &["bash", "-c", &command]);
    // So that only the shim can end its tree, at its own deadline.
    holder.signal(Signal::SIGSTOP);
    until("the other host has it", async || (witness.all().len() == 2).then_some(())).await;
    let all = witness.all();
    assert!(all[0].to.is_some_and(|to| to < all[1].from), "{all:?}");
    holder.signal(Signal::SIGCONT);
}

/// A file that several processes share; on one host it acts as plain cron.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_a_coordinator_too() {
    let ground = Ground::start(Backend::Etcd);
    let hosts = [ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2")];
    let coordinator = format!("DCRON_COORD=sqlite:{}", ground.file("coordinator.db").display());
    let command = writes(&ground, "$HOST", "sleep 0.3");
    let mut calls: Vec<Call> =
        hosts.iter().map(|host| host.call(&[&name("file"), &coordinator], &["bash", "-c", &command])).collect();
    for call in &mut calls {
        assert_eq!(call.ends().await, Some(0), "{}", call.said());
    }
    assert_eq!(lines(&ground).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_of_the_coordinator_is_not_for_the_command() {
    let ground = Ground::start(Backend::Postgres);
    let host = ground.host(PROGRAM, "h1");
    let command = writes(&ground, "\"[$DCRON_COORD]\"", "true");
    assert_eq!(host.call(&[&name("secret")], &["bash", "-c", &command]).ends().await, Some(0));
    assert!(host.url.contains('@') && lines(&ground) == ["[]"], "{:?}", lines(&ground));
    // The other name of a coordinator may carry one too; one without is no secret.
    for (zookeeper, told) in [("ann:secret@127.0.0.1:1", "[]"), ("127.0.0.1:1/x", "[127.0.0.1:1/x]")] {
        let mut host = ground.host(PROGRAM, "h2");
        host.env = vec![("DCRON_COORD".into(), String::new()), ("DCRON_ZK".into(), zookeeper.into())];
        let command = writes(&ground, "\"[$DCRON_ZK]\"", "true");
        let mut call = host.call(&[&name("secret"), "DCRON_WAIT=1", "DCRON_ABSENT=run"], &["bash", "-c", &command]);
        assert_eq!(call.ends().await, Some(0), "{}", call.said());
        assert_eq!(lines(&ground).last().unwrap(), told);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fifo_of_a_wrapper_that_was_killed_is_removed_by_the_next_one() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let command = |word: &str| writes(&ground, &format!("{word} $DCRON_FIFO"), "exec sleep 1000");
    let fifo_of = async |word: &str| {
        let line =
            async || lines(&ground).into_iter().find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned()));
        std::path::PathBuf::from(until("the command runs", line).await)
    };
    let call = |word: &str| host.call(&[&name(word)], &["bash", "-c", &command(word)]);
    let (mut killed, mut lives) = (call("killed"), call("lives"));
    let (left, held) = (fifo_of("killed").await, fifo_of("lives").await);
    kill_group(&killed);
    assert_eq!(killed.ends().await, None);
    // As if both were a night old.
    for fifo in [&left, &held] {
        let touched = assert_cmd::Command::new("touch").args(["-d", "12 hours ago"]).arg(fifo).output().unwrap();
        assert!(touched.status.success() && fifo.exists(), "{touched:?}");
    }
    assert_eq!(host.call(&[&name("next")], &["true"]).ends().await, Some(0));
    assert_eq!((left.exists(), held.exists()), (false, true));
    lives.signal(Signal::SIGTERM);
    assert_eq!(lives.ends().await, Some(143));
    assert!(!held.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_reads_what_the_wrapper_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let wrap = |name: &str, parameters: &[&str], command: &str| {
        let place = |name: &str| folder.path().join(name).display().to_string();
        let mut call = assert_cmd::Command::new(PROGRAM);
        call.args(["wrap", &format!("DCRON_NAME={name}.%Y"), &format!("DCRON_COORD=sqlite:{}", place("c.db"))]);
        call.args([format!("DCRON_LIBDIR={}", place("lib")), format!("DCRON_LOGDIR={}", place("log"))]);
        call.args(["DCRON_STDIOCAP=false"]).args(parameters).args(["--", "sh", "-c", command]);
        call.timeout(Duration::from_secs(60));
        call
    };
    let read = wrap("read", &[], "cat; exit 3").write_stdin("one\ntwo\n").output().unwrap();
    assert_eq!((read.status.code(), &*read.stdout), (Some(3), &b"one\ntwo\n"[..]));
    // What one attempt has read is gone for the next.
    let again = wrap("again", &["DCRON_RETRYON=ABEXIT"], "read line; echo $BELFRY_ATTEMPT $line; exit 1");
    let again = { again }.write_stdin("only\n").output().unwrap();
    assert_eq!(&*again.stdout, b"1 only\n2\n");
    // Nobody waits for what a command does not read.
    let deaf = wrap("deaf", &[], "true").write_stdin(vec![b'x'; 60_000]).output().unwrap();
    assert_eq!(deaf.status.code(), Some(0));
}
