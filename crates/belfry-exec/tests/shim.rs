//! Exclusive work is gone at its deadline, whatever became of agent and zygote, and leaves nothing behind.

mod support;

use std::path::Path;
use std::time::Duration;

use belfry_exec::{CaptureLimits, Deadline, ExitStatus, LastMoments, Prepared, SpawnError, Stream};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use support::{PATIENCE, a_file_with, alive, collect, exec, exists, in_time, run, shell, spawner_with, text, until};

/// Does not end when it is asked to, and its members are in sessions of their own.
const STUBBORN_TREE: &str = "trap '' TERM HUP; sleep 1000 & setsid sleep 1000 & (setsid bash -c 'trap \"\" TERM; (setsid sleep 1000 &) ; sleep 1000' &) ; sleep 1000";
const STUBBORN_MEMBERS: usize = 5;

fn exclusive(what: Prepared) -> Prepared {
    Prepared { exclusive: true, ..what }
}

fn boottime() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock"))
}

fn in_ms(ask: u64, kill: u64) -> LastMoments {
    let now = boottime();
    LastMoments { ask: now + Duration::from_millis(ask), kill: now + Duration::from_millis(kill) }
}

fn far_off() -> Deadline {
    let deadline = Deadline::new().expect("memory");
    deadline.put_off(in_ms(1_000_000, 2_000_000));
    deadline
}

#[tokio::test]
async fn how_it_ends_and_what_it_prints_is_as_without_a_shim() {
    let spawner = spawner_with(far_off());
    let ran = run(&spawner, exclusive(shell("echo out; echo err >&2; exit 7"))).await;
    assert_eq!((ran.code(), ran.stdout.as_str(), ran.stderr.as_str()), (ExitStatus::Code(7), "out\n", "err\n"));
    assert!(!ran.exit.past_deadline);
    let reads = Prepared { stdin: a_file_with("one\ntwo\n"), ..exclusive(shell("cat")) };
    assert_eq!(run(&spawner, reads).await.stdout, "one\ntwo\n");
    let ran = run(&spawner, exclusive(shell("kill -SEGV $$"))).await;
    assert_eq!(ran.code(), ExitStatus::Signal(Signal::SIGSEGV as i32));
    let ran = run(&spawner, exclusive(shell("for i in $(seq 200000); do :; done"))).await;
    assert!(ran.exit.cpu_user + ran.exit.cpu_system > Duration::ZERO, "what the tree used is counted: {:?}", ran.exit);
    assert!(ran.exit.max_rss_bytes > 1 << 20);
    let missing = spawner.spawn(exclusive(exec(["/nowhere/to/be/found"]))).await;
    assert!(matches!(missing, Err(SpawnError::NoSuchFile { .. })), "{:?}", missing.err());
}

#[tokio::test]
async fn what_it_leaves_behind_is_ended_with_it() {
    let spawner = spawner_with(far_off());
    let what = exclusive(shell("sleep 1000 & (setsid env -i sleep 1000 &) ; sleep 0.1; exit 0"));
    let tag = what.tag.clone();
    let ran = run(&spawner, what).await;
    assert_eq!((ran.code(), ran.exit.left_behind), (ExitStatus::Code(0), 2));
    assert_eq!(alive(&tag).len(), 0);
}

#[tokio::test]
async fn it_goes_on_while_the_deadline_is_put_off_and_is_asked_then_killed_when_it_is_not() {
    let deadline = Deadline::new().expect("memory");
    deadline.put_off(in_ms(200, 400));
    let spawner = spawner_with(deadline.clone());
    let polite = exclusive(shell("trap 'exit 5' TERM; while :; do sleep 0.01; done"));
    let stubborn = exclusive(shell(STUBBORN_TREE));
    let (tag, mut polite) = (stubborn.tag.clone(), spawner.spawn(polite).await.expect("start"));
    let mut stubborn = spawner.spawn(stubborn).await.expect("start");
    let first = boottime();
    while boottime() < first + Duration::from_millis(900) {
        deadline.put_off(in_ms(300, 600));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until("the tree is up", || {
        deadline.put_off(in_ms(300, 600));
        alive(&tag).len() >= STUBBORN_MEMBERS
    })
    .await;
    let last = in_ms(300, 600);
    deadline.put_off(last);
    let asked = in_time("the polite one", polite.wait()).await;
    assert_eq!((asked.status, asked.past_deadline), (ExitStatus::Code(5), true), "it was asked");
    let killed = in_time("the stubborn one", stubborn.wait()).await;
    assert_eq!((killed.status, killed.past_deadline), (ExitStatus::Signal(Signal::SIGKILL as i32), true));
    assert!(boottime() >= last.kill, "not before its time");
    assert_eq!(alive(&tag).len(), 0);
}

#[tokio::test]
async fn what_the_deadline_has_asked_to_end_is_killed_in_time_also_when_the_deadline_is_put_off_then() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = folder.path().join("asked");
    let deadline = far_off();
    let spawner = spawner_with(deadline.clone());
    let command = format!("trap 'echo asked > {}' TERM; echo up; while :; do sleep 0.01; done", asked.display());
    let what = exclusive(shell(&command));
    let tag = what.tag.clone();
    let moments = in_ms(1_000, 3_000);
    deadline.put_off(moments);
    let mut child = spawner.spawn(what).await.expect("start");
    until("it is asked", || asked.exists()).await;
    // Contact is back: what was started meanwhile goes on, what was asked to end does not.
    deadline.put_off(in_ms(1_000_000, 2_000_000));
    let exit = in_time("its end", child.wait()).await;
    let late = boottime().saturating_sub(moments.kill);
    assert_eq!((exit.status, exit.past_deadline), (ExitStatus::Signal(Signal::SIGKILL as i32), true));
    assert!(boottime() >= moments.kill && late < Duration::from_secs(1), "{late:?} after its time");
    assert_eq!(alive(&tag).len(), 0);
    assert_eq!(run(&spawner, exclusive(shell("exit 7"))).await.code(), ExitStatus::Code(7));
}

#[tokio::test]
async fn the_agent_that_asks_by_itself_is_not_repeated() {
    let deadline = Deadline::new().expect("memory");
    deadline.put_off(in_ms(1_000, 4_000));
    let spawner = spawner_with(deadline.clone());
    let what = exclusive(shell("trap 'echo asked' TERM; echo up; while :; do sleep 0.01; done"));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    let moments = in_ms(300, 2_300);
    until("it is up", || alive(&tag).len() >= 2).await;
    deadline.put_off(moments);
    until("it is to be asked", || boottime() >= moments.ask).await;
    // As the desk does it: said first, then asked. The shim would ask half a second later.
    deadline.asked();
    let killer = child.killer();
    let (_, (events, _)) = tokio::join!(
        in_time("its end", killer.end_tree(Duration::from_secs(10))),
        collect(&mut child, CaptureLimits::default(), None)
    );
    assert_eq!(text(&events, Stream::Stdout), "up\nasked\n");
    assert!(boottime() >= moments.kill, "it lived until the shim killed it");
    assert_eq!(alive(&tag).len(), 0);
}

#[tokio::test]
async fn it_ends_in_time_while_the_zygote_is_stopped() {
    let deadline = Deadline::new().expect("memory");
    deadline.put_off(in_ms(1_000, 2_000));
    let spawner = spawner_with(deadline.clone());
    let what = exclusive(shell(STUBBORN_TREE));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    until("the tree is up", || {
        deadline.put_off(in_ms(500, 1_000));
        alive(&tag).len() >= STUBBORN_MEMBERS
    })
    .await;
    let zygote = Pid::from_raw(spawner.zygote_pid() as i32);
    kill(zygote, Signal::SIGSTOP).expect("stop the zygote");
    until("the tree is gone", || alive(&tag).is_empty()).await;
    kill(zygote, Signal::SIGCONT).expect("let the zygote go on");
    let exit = in_time("its exit", child.wait()).await;
    assert!(exit.past_deadline, "{exit:?}");
}

#[tokio::test]
async fn it_ends_with_the_zygote_also_what_is_in_a_session_of_its_own() {
    let spawner = spawner_with(far_off());
    let what = exclusive(shell(STUBBORN_TREE));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    until("the tree is up", || alive(&tag).len() >= STUBBORN_MEMBERS).await;
    kill(Pid::from_raw(spawner.zygote_pid() as i32), Signal::SIGKILL).expect("kill -9");
    assert_eq!(in_time("its exit", child.wait()).await.status, ExitStatus::Lost);
    until("the tree is gone", || alive(&tag).is_empty()).await;
    until("the shim is gone", || !exists(child.pid)).await;
}

/// Nobody but a shim finds those, and nobody waits for them who does not wait for it.
#[tokio::test]
async fn a_lost_run_has_left_nobody_also_none_without_its_tag() {
    const RUNS: usize = 20;
    let folder = tempfile::tempdir().expect("a folder");
    let spawner = spawner_with(far_off());
    let mut runs = Vec::new();
    for number in 0..RUNS {
        let file = folder.path().join(number.to_string());
        let hides = format!("setsid env -i sh -c 'echo $$ > {}; exec sleep 1000' & wait", file.display());
        runs.push((spawner.spawn(exclusive(shell(&hides))).await.expect("start"), file));
    }
    let hidden = |file: &Path| std::fs::read_to_string(file).ok()?.strip_suffix('\n')?.parse().ok();
    until("all are hidden", || runs.iter().all(|(_, file)| hidden(file).is_some())).await;
    // One that somebody has stopped has yet to hear of it.
    kill(Pid::from_raw(runs[0].0.pid as i32), Signal::SIGSTOP).expect("stop a shim");
    kill(Pid::from_raw(spawner.zygote_pid() as i32), Signal::SIGKILL).expect("kill -9");
    for (child, file) in &mut runs {
        assert_eq!(in_time("its exit", child.wait()).await.status, ExitStatus::Lost);
        let pid: u32 = hidden(file).expect("a number");
        assert!(!exists(pid) && !exists(child.pid), "{pid} lives on below {}", child.pid);
    }
}

/// Some daemons, and people, send it to all that they see.
#[tokio::test]
async fn a_hangup_that_somebody_sends_to_a_shim_does_not_pass_for_the_end_of_the_zygote() {
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    let spawner = spawner_with(far_off());
    let what = exclusive(shell(&format!("while [ ! -e {} ]; do sleep 0.01; done; exit 7", go.display())));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    until("it is up", || alive(&tag).len() >= 2).await;
    kill(Pid::from_raw(child.pid as i32), Signal::SIGHUP).expect("a hangup");
    until("the shim has read it", || !is_pending(child.pid, Signal::SIGHUP)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    std::fs::write(&go, "").expect("a file");
    assert_eq!(in_time("its exit", child.wait()).await.status, ExitStatus::Code(7));
}

fn is_pending(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("ShdPnd:")?.trim(), 16).ok());
    pending.is_some_and(|bits| bits >> (signal as u32 - 1) & 1 == 1)
}

#[tokio::test]
async fn a_tree_behind_a_shim_is_ended_as_any_other() {
    let spawner = spawner_with(far_off());
    let what = exclusive(shell(STUBBORN_TREE));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    until("the tree is up", || alive(&tag).len() >= STUBBORN_MEMBERS).await;
    in_time("the end", child.killer().end_tree(Duration::from_millis(50))).await;
    assert_eq!(alive(&tag).len(), 0);
    let exit = in_time("its exit", child.wait()).await;
    assert_eq!((exit.status, exit.past_deadline), (ExitStatus::Signal(Signal::SIGKILL as i32), false));
    // TERM reaches the program, and the shim tells how that ended.
    let what = exclusive(shell("trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    until("it is up", || alive(&tag).len() >= 2).await;
    in_time("the end", child.killer().end_tree(PATIENCE)).await;
    assert_eq!(in_time("its exit", child.wait()).await.status, ExitStatus::Code(9));
}

/// The first process ends at once when it is asked to; who works behind it takes a while, and says when it is done.
const WORKER_BEHIND: &str =
    "(trap 'sleep 0.4; echo done; exit 0' TERM INT; echo up; while :; do sleep 0.01; done) & wait; exit 3";
const WORKER_MEMBERS: usize = 3;

#[tokio::test]
async fn who_works_behind_the_first_process_has_the_grace_too() {
    let spawner = spawner_with(far_off());
    let what = exclusive(shell(WORKER_BEHIND));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    until("it is up", || alive(&tag).len() >= WORKER_MEMBERS).await;
    let killer = child.killer();
    let (_, (events, _)) = tokio::join!(
        in_time("its end", killer.end_tree(PATIENCE)),
        collect(&mut child, CaptureLimits::default(), None)
    );
    assert_eq!(text(&events, Stream::Stdout), "up\ndone\n");
    let exit = in_time("its exit", child.wait()).await;
    assert_eq!((exit.status, exit.left_behind), (ExitStatus::Signal(Signal::SIGTERM as i32), 0));
    assert_eq!(alive(&tag).len(), 0);
}

#[tokio::test]
async fn at_the_end_of_the_grace_the_end_of_the_first_process_is_still_what_is_told() {
    let spawner = spawner_with(far_off());
    let what = exclusive(shell("(trap '' TERM; while :; do sleep 0.01; done) & trap 'exit 4' TERM; wait"));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    until("it is up", || alive(&tag).len() >= WORKER_MEMBERS).await;
    in_time("its end", child.killer().end_tree(Duration::from_millis(400))).await;
    assert_eq!(in_time("its exit", child.wait()).await.status, ExitStatus::Code(4));
    assert_eq!(alive(&tag).len(), 0);
}

#[tokio::test]
async fn who_works_behind_the_first_process_has_until_the_deadline_or_until_a_signal_was_heeded() {
    let deadline = far_off();
    let spawner = spawner_with(deadline.clone());
    for is_deadline in [false, true] {
        if is_deadline {
            // The shim looks again a quarter of the way from one to the other.
            deadline.put_off(in_ms(3_000, 11_000));
        }
        let what = exclusive(shell(WORKER_BEHIND));
        let tag = what.tag.clone();
        let mut child = spawner.spawn(what).await.expect("start");
        until("it is up", || alive(&tag).len() >= WORKER_MEMBERS).await;
        if !is_deadline {
            child.killer().pass_on(Signal::SIGTERM);
        }
        let (events, _) = in_time("its output", collect(&mut child, CaptureLimits::default(), None)).await;
        assert_eq!(text(&events, Stream::Stdout), "up\ndone\n");
        let exit = in_time("its exit", child.wait()).await;
        assert_eq!((exit.status, exit.past_deadline), (ExitStatus::Signal(Signal::SIGTERM as i32), is_deadline));
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_tree_whose_shim_was_killed_when_its_end_is_told() {
    let spawner = spawner_with(far_off());
    let what = exclusive(shell(STUBBORN_TREE));
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    until("the tree is up", || alive(&tag).len() >= STUBBORN_MEMBERS).await;
    kill(Pid::from_raw(child.pid as i32), Signal::SIGKILL).expect("kill -9 the shim");
    let exit = in_time("its exit", child.wait()).await;
    assert_eq!(exit.status, ExitStatus::Signal(Signal::SIGKILL as i32));
    assert_eq!(alive(&tag).len(), 0);
    in_time("an end that is asked for afterwards", child.killer().end_tree(PATIENCE)).await;
}

/// As below sudo, which gives a new environment.
#[tokio::test]
async fn nor_is_there_anybody_without_its_tag() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pid");
    let spawner = spawner_with(far_off());
    let untagged = format!("env -i sh -c 'echo $$ > {}; sleep 1000; :' & wait", file.display());
    let mut child = spawner.spawn(exclusive(shell(&untagged))).await.expect("start");
    let untagged = || std::fs::read_to_string(&file).ok()?.strip_suffix('\n')?.parse::<u32>().ok();
    until("it is up", || untagged().is_some()).await;
    kill(Pid::from_raw(child.pid as i32), Signal::SIGKILL).expect("kill -9 the shim");
    assert_eq!(in_time("its exit", child.wait()).await.status, ExitStatus::Signal(Signal::SIGKILL as i32));
    assert!(!exists(untagged().expect("a number")));
}

#[tokio::test]
async fn nothing_begins_when_its_deadline_is_over() {
    let deadline = Deadline::new().expect("memory");
    let spawner = spawner_with(deadline.clone());
    let folder = tempfile::tempdir().expect("a folder");
    let witness = folder.path().join("witness");
    let what = || exclusive(shell(&format!("echo x >> {}", witness.display())));
    for _ in 0..20 {
        let started = spawner.spawn(what()).await;
        assert!(matches!(started, Err(SpawnError::TooLate)), "{:?}", started.err());
    }
    assert!(!witness.exists());
    deadline.put_off(in_ms(1_000_000, 2_000_000));
    assert_eq!(run(&spawner, what()).await.code(), ExitStatus::Code(0));
    assert!(witness.exists());
}
