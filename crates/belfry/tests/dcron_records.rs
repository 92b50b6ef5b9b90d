//! The wrapper for system cron by what is read back from the coordinator: what it writes down, waits for, hands over and clears away.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belfry_coord::wrapped::{decode, encode};
use belfry_coord::{
    Clock, Commit, CoordError, Coordinator, Entry, EtcdCoordinator, Guard, Heartbeat, Hints, Life, Memory, OldLock,
    SystemClock, Write, keys,
};
use belfry_core::Timestamp;
use belfry_core::wrapped::{End, Outcome, Phase, Record, Rule, Shared};
use belfry_exec::ZygoteCommand;
use belfry_testkit::chaos::Backend;
use belfry_testkit::{Ground, Holding, Holdings, Host, now, until};
use belfry_wrap::{Failure, Parameters, Surroundings};
use jiff::tz::TimeZone;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_belfry");
const KEEP: Duration = Duration::from_mins(10);

async fn coordinator(host: &Host) -> EtcdCoordinator {
    EtcdCoordinator::connect(&host.url).await.unwrap()
}

async fn records(coordinator: &dyn Coordinator, name: &str) -> Vec<Record> {
    let entries = coordinator.list(&keys::wrapped_of_name(name)).await.unwrap();
    entries.iter().map(|entry| decode(entry).unwrap().0).collect()
}

async fn seats(coordinator: &dyn Coordinator, name: &str) -> usize {
    coordinator.list(&keys::wrapped_seats(name)).await.unwrap().len()
}

/// As a host that came before has left it.
async fn leave(coordinator: &dyn Coordinator, name: &str, instance: &str, record: &Record) {
    let life = if record.phase == Phase::Running { Life::Beating } else { Life::Stopped };
    let heartbeat = Heartbeat { beat: 77, life, info: encode(record) };
    let key = keys::wrapped(name, instance);
    let put = Write::Put(key.clone(), heartbeat.encode().unwrap());
    let left = coordinator.commit(vec![Guard::Absent(key)], vec![put]).await.unwrap();
    assert!(matches!(left, Commit::Applied(_)), "{left:?}");
}

fn running(claimed_at: Timestamp, ttl: Duration) -> Record {
    Record {
        host: "h0".into(),
        rule: Rule::AtMostOnce,
        attempt: 1,
        attempts_max: 2,
        claimed_at,
        ttl_ms: ttl.as_millis() as u64,
        keep_s: KEEP.as_secs(),
        phase: Phase::Running,
        fence: 0,
        quick_ends: 0,
        copied: false,
    }
}

fn ended(at: Timestamp) -> Record {
    let end = End { outcome: Outcome::Succeeded, exit_code: Some(0), signal: None, at, reason: String::new() };
    Record { phase: Phase::Ended(end), ..running(at, Duration::from_secs(2)) }
}

fn outcome(record: &Record) -> Option<Outcome> {
    match &record.phase {
        Phase::Ended(end) => Some(end.outcome),
        Phase::Running | Phase::Released => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_by_removes_what_is_old_and_gives_up_what_is_silent() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let coordinator = coordinator(&host).await;
    let long_ago = now() - 2 * KEEP;
    let short = Duration::from_secs(2);
    for (instance, record) in [
        ("old", ended(long_ago)),
        ("new", ended(now())),
        ("silent", running(long_ago, short)),
        ("young", running(now(), short)),
        // Nobody who called a wrapper waits for an hour.
        ("patient", running(long_ago, Duration::from_hours(1))),
        ("always", Record { rule: Rule::LongLived, ..running(long_ago, short) }),
    ] {
        leave(&coordinator, "swept", instance, &record).await;
    }
    let seat = keys::wrapped_seat("swept", "old", 1);
    coordinator.commit(vec![], vec![Write::Put(seat, "x".into())]).await.unwrap();

    assert_eq!(host.call(&["DCRON_NAME=swept.%Y"], &["true"]).ends().await, Some(0));
    let at = async |instance: &str| {
        let entry = coordinator.get(&keys::wrapped("swept", instance)).await.unwrap();
        entry.map(|entry| outcome(&decode(&entry).unwrap().0))
    };
    assert_eq!(at("old").await, None, "it is removed");
    assert_eq!(at("new").await, Some(Some(Outcome::Succeeded)), "late hosts must find it");
    assert_eq!(at("silent").await, Some(Some(Outcome::Lost)));
    for running in ["young", "patient", "always"] {
        assert_eq!(at(running).await, Some(None), "{running}");
    }
    assert_eq!(seats(&coordinator, "swept").await, 0);

    // The next ones leave it at that for an hour.
    leave(&coordinator, "swept", "later", &ended(long_ago)).await;
    assert_eq!(host.call(&["DCRON_NAME=swept.%Y-%j"], &["true"]).ends().await, Some(0));
    assert_eq!(at("later").await, Some(Some(Outcome::Succeeded)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapper_that_looks_for_old_records_still_ends_when_it_is_asked_to() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let coordinator = coordinator(&host).await;
    leave(&coordinator, "swept", "silent", &running(now() - 2 * KEEP, Duration::from_secs(50))).await;
    let mut call = host.call(&["DCRON_NAME=swept.%Y"], &["sh", "-c", "exit 3"]);
    let key = keys::wrapped_shared("swept");
    until("it looks", async || coordinator.get(&key).await.unwrap()).await;
    assert!(!call.has_ended(), "it waits to see whether a host is silent");
    let asked = now();
    call.signal(Signal::SIGTERM);
    assert_eq!(call.ends().await, Some(3), "{}", call.said());
    assert!(now().duration_since(asked).as_secs() < 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cut_off_under_the_empty_rule_is_written_down_as_lost() {
    let ground = Ground::start(Backend::Etcd);
    let (host, other) = (ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2"));
    let witness = Holdings::listen().await;
    let command = format!("{} && exec sleep 1000", witness.hold("$HOST"));
    let mut call = host.call(&["DCRON_NAME=cut.%Y"], &["bash", "-c", &command]);
    until("it runs", async || (witness.all().len() == 1).then_some(())).await;
    host.cut();
    until("its tree is ended", async || witness.all()[0].to.is_some().then_some(())).await;
    host.heal();
    assert_eq!(call.ends().await, Some(76), "{}", call.said());
    let [record] = &records(&coordinator(&other).await, "cut").await[..] else { panic!("one record") };
    let Phase::Ended(end) = &record.phase else { panic!("{record:?}") };
    assert_eq!((end.outcome, end.exit_code, record.attempt), (Outcome::Lost, None, 1));
    assert!(end.reason.contains("cut off"), "{}", end.reason);
    assert_eq!(other.call(&["DCRON_NAME=cut.%Y"], &["bash", "-c", &command]).ends().await, Some(0));
    assert_eq!(witness.all().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_and_is_asked_to_end_says_so_and_leaves_its_seat() {
    let ground = Ground::start(Backend::Etcd);
    let hosts = [ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2")];
    let coordinator = coordinator(&hosts[0]).await;
    let parameters = ["DCRON_NAME=waits.%Y", "DCRON_RETRYON=CRASH", "DCRON_TTL=15"];
    let mut holder = hosts[0].call(&parameters, &["sleep", "1000"]);
    until("it runs", async || records(&coordinator, "waits").await.pop()).await;
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut waiting = hosts[1].call(&parameters, &["sleep", "1000"]);
        until("it waits", async || (seats(&coordinator, "waits").await == 1).then_some(())).await;
        waiting.signal(signal);
        assert_eq!(waiting.ends().await, Some(code), "{}", waiting.said());
        assert_eq!(seats(&coordinator, "waits").await, 0);
    }
    holder.signal(Signal::SIGTERM);
    assert_eq!(holder.ends().await, Some(143));
    let outcomes: Vec<_> = records(&coordinator, "waits").await.iter().map(outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Killed)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_does_not_heed_term_is_killed_after_a_while() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let witness = Holdings::listen().await;
    let command = format!("trap '' TERM; {} && while :; do sleep 0.1; done", witness.hold("deaf"));
    let mut call = host.call(&["DCRON_NAME=deaf.%Y"], &["bash", "-c", &command]);
    until("it runs", async || (witness.all().len() == 1).then_some(())).await;
    call.signal(Signal::SIGTERM);
    assert_eq!(call.ends().await, Some(128 + 9), "{}", call.said());
    until("nothing is left", async || ground.processes().is_empty().then_some(())).await;
    let [record] = &records(&coordinator(&host).await, "deaf").await[..] else { panic!("one record") };
    let Phase::Ended(end) = &record.phase else { panic!("{record:?}") };
    assert_eq!((end.outcome, end.signal), (Outcome::Killed, Some(9)));
}

/// Who has an instance is known by its record and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_with_one_id_exclude_each_other() {
    let ground = Ground::start(Backend::Etcd);
    let hosts = ["h1", "h2"].map(|name| {
        let mut host = ground.host(PROGRAM, name);
        host.env.push(("DCRON_ID".into(), "twin".into()));
        host
    });
    let coordinator = coordinator(&hosts[0]).await;
    let witness = Holdings::listen().await;
    for instance in 0..5 {
        let name = format!("DCRON_NAME=once{instance}.%Y");
        let command = format!("{} && exec sleep 0.3", witness.hold("once"));
        let mut calls = [0, 1].map(|host: usize| hosts[host].call(&[&name], &["bash", "-c", &command]));
        for call in &mut calls {
            assert_eq!(call.ends().await, Some(0), "{}", call.said());
        }
    }
    assert_eq!(witness.all().len(), 5, "each instance once");

    let command = format!("{} && exec sleep 1000", witness.hold("$HOST"));
    let call = |host: &Host| host.call(&["DCRON_NAME=twins.%Y", "DCRON_RETRYON=CRASH"], &["bash", "-c", &command]);
    let holder = call(&hosts[0]);
    until("it runs", async || (witness.all().len() == 6).then_some(())).await;
    let _waits = call(&hosts[1]);
    until("the other one waits", async || (seats(&coordinator, "twins").await == 1).then_some(())).await;
    holder.signal_group(Signal::SIGKILL);
    until("the other one has it", async || (witness.all().len() == 7).then_some(())).await;
    let [.., first, second] = &witness.all()[..] else { panic!("two at least") };
    assert_eq!((&first.words[..], &second.words[..]), (&["h1".to_owned()][..], &["h2".to_owned()][..]));
    assert!(first.to.is_some_and(|to| to < second.from), "never both at once: {first:?}, {second:?}");
    let [record] = &records(&coordinator, "twins").await[..] else { panic!("one record") };
    assert_eq!((record.host.as_str(), record.attempt), ("twin", 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_an_id_is_known_by_its_address() {
    let ground = Ground::start(Backend::Etcd);
    let mut host = ground.host_apart(PROGRAM, "h1");
    host.env.push(("DCRON_ID".into(), String::new()));
    let says_where = format!("hostname -I > {}; exec \"$@\"", ground.file("addresses").display());
    let mut call = host.shell(&says_where, &["DCRON_NAME=address.%Y"], &["true"]);
    assert_eq!(call.ends().await, Some(0), "{}", call.said());
    let said = std::fs::read_to_string(ground.file("addresses")).unwrap();
    let mut known: Vec<String> =
        said.split_whitespace().filter(|word| word.parse::<Ipv4Addr>().is_ok()).map(str::to_owned).collect();
    if known.is_empty() {
        known.push(nix::unistd::gethostname().unwrap().into_string().unwrap());
    }
    let [record] = &records(&coordinator(&host).await, "address").await[..] else { panic!("one record") };
    assert!(known.contains(&record.host), "{} is none of {known:?}", record.host);
}

/// One call of cron's on each of these hosts.
async fn long_lived(hosts: &[Host], parameters: &[&str], witness: &Holdings) {
    let command = format!("{} && exec sleep 1000", witness.hold("$HOST"));
    let parameters = [&["DCRON_NAME=loop", "DCRON_LLAP=true"], parameters].concat();
    for host in hosts {
        let mut call = host.call(&parameters, &["bash", "-c", &command]);
        assert_eq!(call.ends().await, Some(0), "{}", call.said());
    }
}

fn runs_now(witness: &Holdings) -> Option<Holding> {
    witness.all().into_iter().find(|held| held.to.is_none())
}

fn signal_wrapper(host: &Host, signal: Signal) {
    let wrapper = *host.wrappers().first().expect("the wrapper of the host that has it");
    kill(Pid::from_raw(wrapper), signal).unwrap();
}

/// Nobody stands by: whoever cron calls next must find out by itself that the last one is dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_without_standby_hosts_runs_again_after_a_crash() {
    let ground = Ground::start(Backend::Etcd);
    let hosts = [ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2")];
    let witness = Holdings::listen().await;
    // The second one is less patient than the first, and must go by the first one's time.
    for (crashes, comes, ttl) in [(0, 0, "DCRON_TTL=4"), (0, 1, "DCRON_TTL=2"), (1, 1, "DCRON_TTL=2")] {
        long_lived(&hosts[crashes..=crashes], &["DCRON_MAXRETRY=1", "DCRON_TTL=4"], &witness).await;
        let before = until("it runs", async || runs_now(&witness)).await;
        assert_eq!(before.words[0], hosts[crashes].name);
        signal_wrapper(&hosts[crashes], Signal::SIGKILL);
        until("its tree is ended", async || runs_now(&witness).is_none().then_some(())).await;
        long_lived(&hosts[comes..=comes], &["DCRON_MAXRETRY=1", ttl], &witness).await;
        let after = until("it runs again", async || runs_now(&witness)).await;
        assert_eq!(after.words[0], hosts[comes].name);
        signal_wrapper(&hosts[comes], Signal::SIGTERM);
        until("it is stopped", async || ground.processes().is_empty().then_some(())).await;
    }
    // One that runs is left alone, and nobody stays for it.
    long_lived(&hosts, &["DCRON_MAXRETRY=1"], &witness).await;
    until("one runs, and the other leaves", async || {
        let wrappers: usize = hosts.iter().map(|host| host.wrappers().len()).sum();
        (runs_now(&witness).is_some() && wrappers == 1).then_some(())
    })
    .await;
    assert_eq!(witness.all().len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_is_handed_over_at_once_by_one_who_is_asked_to_end() {
    const TTL: Duration = Duration::from_secs(30);
    let ground = Ground::start(Backend::Etcd);
    let hosts = [ground.host(PROGRAM, "h1"), ground.host(PROGRAM, "h2")];
    let coordinator = coordinator(&hosts[0]).await;
    let witness = Holdings::listen().await;
    let ttl = format!("DCRON_TTL={}", TTL.as_secs());
    long_lived(&hosts, &[&ttl], &witness).await;
    let before = until("it runs", async || runs_now(&witness)).await;
    until("the other one waits", async || (seats(&coordinator, "loop").await == 1).then_some(())).await;
    let asked = now();
    signal_wrapper(hosts.iter().find(|host| host.name == before.words[0]).unwrap(), Signal::SIGTERM);
    let is_other = |held: &Holding| held.words[0] != before.words[0];
    let after = until("the other one has it", async || runs_now(&witness).filter(is_other)).await;
    let took = Duration::try_from(after.from.duration_since(asked)).unwrap();
    assert!(took < TTL / 3, "{took:?}");
}

/// Answers some of the questions for what instances of a name share late. The first comes between the claim and the start.
struct Slow {
    memory: Memory,
    asked: AtomicUsize,
    late: RangeInclusive<usize>,
    by: Duration,
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, CoordError>> + Send + 'a>>;

impl Coordinator for Slow {
    fn get<'a, 'k, 'f>(&'a self, key: &'k str) -> Answer<'f, Option<Entry>>
    where
        'a: 'f,
        'k: 'f,
    {
        Box::pin(async move {
            if key.starts_with("wrap/name/") && self.late.contains(&self.asked.fetch_add(1, Ordering::SeqCst)) {
                tokio::time::sleep(self.by).await;
            }
            self.memory.get(key).await
        })
    }

    fn list<'a, 'k, 'f>(&'a self, prefix: &'k str) -> Answer<'f, Vec<Entry>>
    where
        'a: 'f,
        'k: 'f,
    {
        self.memory.list(prefix)
    }

    fn commit<'a, 'f>(&'a self, guards: Vec<Guard>, writes: Vec<Write>) -> Answer<'f, Commit>
    where
        'a: 'f,
    {
        self.memory.commit(guards, writes)
    }

    fn watch<'a, 'k, 'f>(&'a self, prefix: &'k str) -> Answer<'f, Hints>
    where
        'a: 'f,
        'k: 'f,
    {
        self.memory.watch(prefix)
    }
}

/// With a TTL of two seconds, in a folder of its own.
struct Wrapping {
    folder: TempDir,
    coordinator: Arc<dyn Coordinator>,
}

impl Wrapping {
    fn with(late: RangeInclusive<usize>, by: Duration) -> Self {
        let slow = Slow { memory: Memory::default(), asked: AtomicUsize::new(0), late, by };
        Self { folder: tempfile::tempdir().unwrap(), coordinator: Arc::new(slow) }
    }

    fn place(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    async fn run(&self, command: &[&str]) -> Result<u8, Failure> {
        self.run_with(&[], command).await
    }

    async fn run_with(&self, parameters: &[&str], command: &[&str]) -> Result<u8, Failure> {
        let words = [
            "DCRON_NAME=slow.%Y".to_owned(),
            "DCRON_COORD=memory".to_owned(),
            "DCRON_TTL=2".to_owned(),
            format!("DCRON_LIBDIR={}", self.place("lib")),
            format!("DCRON_LOGDIR={}", self.place("log")),
        ];
        let given = [parameters, &["--"], command].concat();
        let words = words.into_iter().chain(given.into_iter().map(str::to_owned));
        let parameters = Parameters::read(words.map(Into::into), []).unwrap();
        let surroundings = Surroundings {
            zygote: ZygoteCommand { program: PROGRAM.into(), args: vec!["__zygote".to_owned()] },
            clock: Arc::new(SystemClock),
            zone: TimeZone::UTC,
            open_old_lock: OldLock::of,
            tell_output: None,
        };
        belfry_wrap::run(parameters, surroundings, async |_: &str| Ok(self.coordinator.clone())).await
    }

    async fn record(&self) -> Record {
        let [record] = &records(&*self.coordinator, "slow").await[..] else { panic!("one record") };
        record.clone()
    }
}

#[tokio::test]
async fn what_could_not_be_started_in_time_is_started_later_and_is_not_lost() {
    let wrapping = Wrapping::with(0..=0, Duration::from_millis(1500));
    let command = format!("echo $BELFRY_ATTEMPT >> {}", wrapping.place("lines"));
    let exit_code = wrapping.run(&["sh", "-c", &command]).await.unwrap();
    let record = wrapping.record().await;
    assert_eq!((exit_code, outcome(&record), record.attempt), (0, Some(Outcome::Succeeded), 1));
    assert_eq!(std::fs::read_to_string(wrapping.place("lines")).unwrap(), "1\n");
    assert!(record.claimed_at <= SystemClock.now());
}

/// By a heartbeat that is nearly too old for a start, with a coordinator that answers at once from then on.
#[tokio::test]
async fn what_starts_late_is_beaten_for_at_once_and_not_cut_off() {
    let wrapping = Wrapping::with(0..=0, Duration::from_millis(900));
    let exit_code = wrapping.run(&["sleep", "1"]).await;
    assert_eq!((exit_code.unwrap(), outcome(&wrapping.record().await)), (0, Some(Outcome::Succeeded)));
}

/// It says what becomes of the instance, and does not send whoever reads it to a parameter that would not have helped.
#[tokio::test]
async fn a_coordinator_that_goes_away_between_claim_and_start_is_told_as_that() {
    for (rule, says) in [("", "no other host runs it"), ("CRASH", "starts it after the TTL")] {
        let wrapping = Wrapping::with(0..=100, Duration::from_secs(60));
        let parameters = ["DCRON_WAIT=1", "DCRON_ABSENT=run", &format!("DCRON_RETRYON={rule}")];
        let failure = wrapping.run_with(&parameters, &["true"]).await.unwrap_err();
        assert_eq!((failure.code(), outcome(&wrapping.record().await)), (75, None));
        let said = failure.to_string();
        assert!(said.contains("attempt 1 was not started") && said.contains(says), "{said}");
        assert!(!said.contains("DCRON_ABSENT=run"), "{said}");
    }
}

/// What instances of a name share cannot be read for a while, and all else goes on.
#[tokio::test]
async fn a_value_that_cannot_be_saved_yet_costs_no_heartbeat_and_is_saved_later() {
    let wrapping = Wrapping::with(1..=4, Duration::from_secs(20));
    let exit_code = wrapping.run(&["sh", "-c", "echo A=1 > $DCRON_FIFO; sleep 3"]).await;
    assert_eq!((exit_code.unwrap(), outcome(&wrapping.record().await)), (0, Some(Outcome::Succeeded)));
    let shared = wrapping.coordinator.get(&keys::wrapped_shared("slow")).await.unwrap().unwrap();
    let shared: Shared = serde_json::from_slice(&shared.value).unwrap();
    assert_eq!(shared.values.get("A").map(String::as_str), Some("1"));
}

const F_SETSIG: i32 = 10;

/// An exec waits for who has a lease on the program, as it does for a network mount that is dead.
fn hold_back(program: &str) -> std::fs::File {
    let file = std::fs::File::open(program).unwrap();
    #[expect(unsafe_code, reason = "nix has no leases")]
    // SAFETY: plain system calls on a file that lives. Who wants the file is told by a signal that does nothing.
    unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK), 0, "a lease");
    }
    file
}

#[tokio::test]
async fn a_start_that_takes_longer_than_a_ttl_is_no_host_that_is_cut_off() {
    let wrapping = Wrapping::with(9..=9, Duration::ZERO);
    let program = wrapping.place("program");
    std::fs::copy("/bin/true", &program).unwrap();
    let lease = hold_back(&program);
    let release = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        drop(lease);
    };
    let command = [program.as_str()];
    let (exit_code, ()) = tokio::join!(wrapping.run(&command), release);
    let record = wrapping.record().await;
    assert_eq!((exit_code.unwrap(), outcome(&record), record.attempt), (0, Some(Outcome::Succeeded), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_hangs_ends_when_the_wrapper_is_asked_to() {
    let ground = Ground::start(Backend::Etcd);
    let host = ground.host(PROGRAM, "h1");
    let program = ground.file("program").display().to_string();
    std::fs::copy("/bin/true", &program).unwrap();
    let lease = hold_back(&program);
    let mut call = host.call(&["DCRON_NAME=hangs.%Y"], &[&program]);
    let coordinator = coordinator(&host).await;
    until("it has the instance", async || records(&coordinator, "hangs").await.pop()).await;
    // Longer than a heartbeat lasts.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!call.has_ended(), "{}", call.said());
    let asked = now();
    call.signal(Signal::SIGTERM);
    assert_eq!(call.ends().await, Some(143), "{}", call.said());
    assert!(now().duration_since(asked).as_secs() < 8);
    let outcomes: Vec<_> = records(&coordinator, "hangs").await.iter().map(outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Killed)]);
    drop(lease);
}
