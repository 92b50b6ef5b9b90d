//! The wrapper under faults on each backend: its group killed, itself stopped, its link cut, the coordinator killed. Each host has a network
//! namespace of its own. What is judged is what a listener outside saw of the commands, over a link that is never cut. `BELFRY_INJECTIONS` says how many faults each backend suffers;
//! one that ended nothing is not counted.

use std::time::Duration;

use belfry_testkit::chaos::Backend;
use belfry_testkit::{Call, Ground, Holding, Holdings, Host, Seed, until, until_within};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use serde_json::json;

const PROGRAM: &str = env!("CARGO_BIN_EXE_belfry");
const TTL: Duration = Duration::from_secs(2);
const RULES: [&str; 3] = ["", "CRASH", "ABEXIT"];

#[derive(Clone, Copy, Debug)]
enum Fault {
    KillGroup,
    Stop,
    CutLink,
    CoordinatorAway,
}

const FAULTS: [Fault; 4] = [Fault::KillGroup, Fault::Stop, Fault::CutLink, Fault::CoordinatorAway];
const BACKENDS: [Backend; 4] = [Backend::Etcd, Backend::ZooKeeper, Backend::Postgres, Backend::MariaDb];
/// In a row; a coordinator is away for longer each time.
const WITHOUT_EFFECT_MAX: u32 = 3;

/// Four for each backend and all of them meet every fault under every rule.
fn fault_and_rule(number: u64) -> (Fault, &'static str) {
    (FAULTS[(number % 4) as usize], RULES[(number % 3) as usize])
}

/// Another one for each backend, and the number of the first of its faults.
fn seed_of(backend: Backend) -> (Seed, u64) {
    let place = BACKENDS.iter().position(|it| it.name() == backend.name()).expect("one of them") as u64;
    let number = Seed::number_from_env(11);
    (Seed::of(number.wrapping_add(place)), number % 12 + 4 * place)
}

fn injections() -> u64 {
    std::env::var("BELFRY_INJECTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

fn overlap(all: &[Holding]) -> Option<&[Holding]> {
    all.windows(2).find(|pair| pair[0].to.is_none_or(|to| to > pair[1].from))
}

struct Instance<'a> {
    ground: &'a mut Ground,
    hosts: &'a [Host],
    witness: &'a Holdings,
    word: String,
}

impl Instance<'_> {
    fn seen(&self) -> Vec<Holding> {
        self.witness.all().into_iter().filter(|held| held.words[0] == self.word).collect()
    }

    /// Of the first attempt, which goes on for ever; later ones end at once.
    fn call(&self, host: usize, rule: &str) -> Call {
        let hold = self.witness.hold(&format!("{} $HOST $BELFRY_ATTEMPT", self.word));
        let command =
            format!("{hold} && if [ $BELFRY_ATTEMPT = 1 ]; then trap '' TERM; while :; do sleep 0.1; done; fi");
        let parameters = [format!("DCRON_NAME={}.%Y", self.word), format!("DCRON_RETRYON={rule}")];
        let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
        self.hosts[host].call(&parameters, &["bash", "-c", &command])
    }

    /// False: nothing ended of it.
    async fn suffer(&mut self, fault: Fault, rule: &str, without_effect: u32, seed: &mut Seed) -> bool {
        let mut first = self.call(0, rule);
        until("the first host runs it", async || (self.seen().len() == 1).then_some(())).await;
        let mut second = self.call(1, rule);
        let span = TTL * (12 + seed.below(20) as u32) / 10;
        tokio::time::sleep(Duration::from_millis(seed.below(1000))).await;
        match fault {
            Fault::KillGroup => {
                first.signal_group(Signal::SIGKILL);
                first.ends().await;
            }
            Fault::Stop => {
                first.signal(Signal::SIGSTOP);
                tokio::time::sleep(span).await;
                first.signal(Signal::SIGCONT);
            }
            Fault::CutLink => {
                self.hosts[0].cut();
                tokio::time::sleep(span).await;
                self.hosts[0].heal();
            }
            Fault::CoordinatorAway => {
                self.ground.kill();
                tokio::time::sleep(span * (1 + without_effect) / 2).await;
                self.ground.restart();
            }
        }
        let what = format!("{fault:?} for {span:?}, rule `{rule}`");
        // A coordinator that was away for a short time only costs nothing.
        let ended = until_within(TTL * 3, async || self.seen()[0].to.is_some().then_some(())).await;
        if ended.is_none() {
            assert!(matches!(fault, Fault::CoordinatorAway), "{what}: its tree lives on");
            first.signal_group(Signal::SIGKILL);
            until("its tree is gone", async || self.seen()[0].to.is_some().then_some(())).await;
        }
        let starts = if rule.is_empty() { 1 } else { 2 };
        until(&format!("all starts after {what}"), async || (self.seen().len() == starts).then_some(())).await;
        until(&format!("all ends after {what}"), async || {
            self.seen().iter().all(|held| held.to.is_some()).then_some(())
        })
        .await;
        let _either_way = first.ends().await;
        assert_eq!(second.ends().await, Some(0), "{what}: {}", second.said());
        let mut late = self.call(2, rule);
        assert_eq!(late.ends().await, Some(0), "{what}: {}", late.said());
        let all = self.seen();
        assert_eq!(all.len(), starts, "{what}: {all:?}");
        assert!(overlap(&all).is_none(), "{what}: two at once: {all:?}");
        assert!(all.iter().enumerate().all(|(n, held)| held.words[2] == (n + 1).to_string()), "{what}: {all:?}");
        ended.is_some()
    }
}

/// On a line of its own, for whoever reads figures.
fn tell(what: &str, backend: Backend, faults: u64) {
    let figure = format!("faults on {} under which {what}", backend.name());
    println!("\n{}", json!({"figure": figure, "value": faults, "at_least": 25}));
}

async fn the_rules_hold_under_faults(backend: Backend) {
    let mut ground = Ground::start(backend);
    let hosts: Vec<Host> = (1..=3).map(|number| ground.host_apart(PROGRAM, &format!("h{number}"))).collect();
    let witness = Holdings::listen().await;
    let (mut seed, first) = seed_of(backend);
    let (mut had_effect, mut without_effect) = (0, 0);
    while had_effect < injections() {
        let (fault, rule) = fault_and_rule(first + had_effect);
        let word = format!("n{had_effect}-{without_effect}");
        let mut instance = Instance { ground: &mut ground, hosts: &hosts, witness: &witness, word };
        if instance.suffer(fault, rule, without_effect, &mut seed).await {
            (had_effect, without_effect) = (had_effect + 1, 0);
        } else {
            without_effect += 1;
            assert!(without_effect < WITHOUT_EFFECT_MAX, "{fault:?} has no effect");
        }
    }
    tell("the rules hold", backend, had_effect);
}

async fn a_long_lived_process_never_runs_twice_under_faults(backend: Backend) {
    let mut ground = Ground::start(backend);
    let hosts: Vec<Host> = (1..=3).map(|number| ground.host_apart(PROGRAM, &format!("h{number}"))).collect();
    let witness = Holdings::listen().await;
    let hold = format!("{} && exec sleep 100000", witness.hold("llap $HOST $BELFRY_FENCE"));
    let (mut seed, first) = seed_of(backend);
    let running = || witness.all().into_iter().find(|held| held.to.is_none());
    let (mut had_effect, mut without_effect) = (0, 0);
    while had_effect < injections() {
        // What cron does each minute.
        for host in &hosts {
            let parameters = ["DCRON_NAME=llap.%F_%H%M", "DCRON_LLAP=true", "DCRON_MAXRETRY=3", "DCRON_WAIT=10"];
            assert_eq!(host.call(&parameters, &["bash", "-c", &hold]).ends().await, Some(0));
        }
        let before = until("it runs", async || running()).await;
        let owner = hosts.iter().find(|host| host.name == before.words[1]).expect("one of the hosts");
        let wrapper = Pid::from_raw(*owner.wrappers().first().expect("the wrapper of the host that has it"));
        let span = TTL * (15 + seed.below(15) as u32) / 10;
        let (fault, _no_rule) = fault_and_rule(first + had_effect);
        match fault {
            Fault::KillGroup => killpg(getpgid(Some(wrapper)).unwrap(), Signal::SIGKILL).unwrap(),
            Fault::Stop => {
                kill(wrapper, Signal::SIGSTOP).unwrap();
                tokio::time::sleep(span).await;
                kill(wrapper, Signal::SIGCONT).unwrap();
            }
            Fault::CutLink => {
                owner.cut();
                tokio::time::sleep(span).await;
                owner.heal();
            }
            Fault::CoordinatorAway => {
                ground.kill();
                tokio::time::sleep(span * (1 + without_effect) / 2).await;
                ground.restart();
            }
        }
        let has_ended =
            async || witness.all().iter().any(|held| held.words == before.words && held.to.is_some()).then_some(());
        if until_within(TTL * 3, has_ended).await.is_some() {
            (had_effect, without_effect) = (had_effect + 1, 0);
        } else {
            without_effect += 1;
            assert!(without_effect < WITHOUT_EFFECT_MAX, "{fault:?} has no effect");
        }
    }
    until("it runs at the end", async || running().map(drop)).await;
    let all = witness.all();
    assert!(overlap(&all).is_none(), "two at once: {:?}", overlap(&all));
    let fences: Vec<u64> = all.iter().map(|held| held.words[2].parse().unwrap()).collect();
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    tell("a long-lived process never ran twice", backend, had_effect);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_hold_on_etcd() {
    the_rules_hold_under_faults(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_hold_on_zookeeper() {
    the_rules_hold_under_faults(Backend::ZooKeeper).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_hold_on_postgresql() {
    the_rules_hold_under_faults(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_hold_on_mariadb() {
    the_rules_hold_under_faults(Backend::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_never_runs_twice_on_etcd() {
    a_long_lived_process_never_runs_twice_under_faults(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_never_runs_twice_on_zookeeper() {
    a_long_lived_process_never_runs_twice_under_faults(Backend::ZooKeeper).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_never_runs_twice_on_postgresql() {
    a_long_lived_process_never_runs_twice_under_faults(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_lived_process_never_runs_twice_on_mariadb() {
    a_long_lived_process_never_runs_twice_under_faults(Backend::MariaDb).await;
}
