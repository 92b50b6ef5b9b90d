//! Chaos: servers, agents and a backend as real processes fire all the time, suffer faults that a seed chooses, and are judged by what
//! the jobs themselves wrote, by an oracle of what was due, and by what was seen of each fault. The same code serves
//! `cargo xtask chaos` and the short form among the tests.

mod backend;
mod clock;
mod cluster;
mod disk;
mod end;
mod faults;
mod firing;
mod jobs;
mod report;
mod services;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

pub use backend::Backend;
pub use clock::FakeClock;
use cluster::Cluster;
pub use faults::Kind;
use faults::{Ordeal, Suffered};
use firing::Firing;
use jobs::ChaosJob;
pub use report::Report;
use services::{Services, Standstill};

use crate::judge::{Trouble, TroubleOf};
use crate::seed::Seed;
use crate::until::now;
use crate::witness::Witness;

/// Until something fires again after a heal; beyond it the cluster is held broken.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(60);

pub struct Plan {
    /// The built `belfry`.
    pub program: PathBuf,
    pub backend: Backend,
    pub seed: u64,
    pub ttl: Duration,
    /// Faults with an effect that are wanted.
    pub faults: usize,
    /// These in turn; all that the backend allows when empty.
    pub kinds: Vec<Kind>,
    /// A bug that is asked for in all processes, see `belfry_core::planted`.
    pub planted: Option<String>,
    /// How many jobs are due in one instant, once a minute.
    pub herd: usize,
    /// Nothing else goes on here, so that time can be judged: no start and no recovery may be late, and nobody is held dead without a
    /// cause. On a busy machine any heartbeat may be held up.
    pub quiet_machine: bool,
    /// Logs of all processes and the jobs' lines are left here.
    pub keep: Option<PathBuf>,
    /// Says on stderr what is done, while it is done.
    pub aloud: bool,
}

impl Plan {
    /// The short form that tests use.
    pub fn short(program: &str, backend: Backend, kinds: &[Kind]) -> Self {
        Self {
            program: program.into(),
            backend,
            seed: Seed::number_from_env(20_261_116),
            ttl: Duration::from_secs(2),
            faults: kinds.len(),
            kinds: kinds.to_vec(),
            planted: None,
            herd: 0,
            quiet_machine: false,
            keep: None,
            aloud: false,
        }
    }
}

/// Runs the whole ordeal. Nothing of it is left when it returns.
pub async fn run(plan: &Plan) -> Report {
    let began = now();
    let mut cluster = Cluster::start(plan).await;
    let witness = Witness::new();
    let jobs = jobs::add_all(cluster.any_client(), &witness, plan.herd).await;
    let services = Services::add(cluster.any_client()).await;
    let mut kinds: Vec<Kind> = if plan.kinds.is_empty() { Kind::ALL.to_vec() } else { plan.kinds.clone() };
    kinds.retain(|kind| kind.fits(plan.backend, &cluster));
    let mut report = Report::new(plan, &kinds);
    let mut ordeal = Ordeal {
        cluster: &mut cluster,
        firing: Firing::new(&witness),
        jobs: &jobs,
        services: &services,
        seed: Seed::of(plan.seed),
    };
    let mut troubles = Vec::new();
    let steady: Vec<&ChaosJob> = jobs.iter().filter(|job| job.steady).collect();
    if ordeal.firing.until_again_after(began, &steady, RECOVERY_PATIENCE).await.is_none() {
        report.broken.push("it never began to fire".to_owned());
    }
    if !services.until_all_run().await {
        report.broken.push("not all services began to run".to_owned());
    }
    let mut standstills = Vec::new();
    let mut turns = kinds.iter().copied().cycle();
    for _ in 0..2 * plan.faults + kinds.len() {
        // A kind that did nothing so far gets another chance.
        let next = if report.effective() < plan.faults { turns.next() } else { report.kinds_without_effect().next() };
        let Some(kind) = next.filter(|_| report.broken.is_empty()) else { break };
        let suffered = ordeal.suffer(kind).await;
        let recovery = ordeal.firing.until_again_after(suffered.healed, &steady, RECOVERY_PATIENCE).await;
        if plan.aloud {
            tell(&suffered, recovery, began);
        }
        let until_healed = suffered.kind.lets_nothing_start(plan.backend).then_some(suffered.healed);
        if let Some(healed) = suffered.standstill_until.or(until_healed) {
            standstills.push(Standstill { from: suffered.from, healed });
        }
        match recovery {
            Some(took) => report.recovered(took),
            None => report.broken.push(format!("{}: it did not fire again by itself", suffered.kind.name())),
        }
        if recovery.is_some() {
            ordeal.cluster.until_whole().await;
        }
        troubles.push(Trouble { from: suffered.from, to: now(), of: suffered.of.clone() });
        report.suffered(&suffered);
    }
    if !plan.quiet_machine {
        troubles.push(Trouble { from: began, to: Timestamp::MAX, of: TroubleOf::Slowness });
    }
    // The last fault may have ended one a moment ago. One that never runs again is for its judge to say.
    let _all_run = services.until_all_run().await;
    report.kept_running(services.judge(&standstills));
    services.pause(cluster.any_client()).await;
    end::judge_all(&cluster, &jobs, &witness, plan, &troubles, &mut report).await;
    if let Some(folder) = &plan.keep {
        keep(&cluster, &witness, folder);
    }
    report.took = Duration::try_from(now().duration_since(began)).unwrap_or_default();
    report
}

fn tell(suffered: &Suffered, recovery: Option<Duration>, began: Timestamp) {
    let at = suffered.from.duration_since(began).as_secs_f64();
    let seconds = |took: Option<Duration>| took.map_or("-".to_owned(), |took| format!("{:.1} s", took.as_secs_f64()));
    let effect = suffered.effect.as_deref().unwrap_or("no effect was seen; it does not count");
    let (kind, again, takeover) = (suffered.kind.name(), seconds(recovery), seconds(suffered.takeover));
    eprintln!("{at:7.1} s  {kind}: {effect}; fires again after {again}, takeover {takeover}  [{}]", suffered.from);
}

fn keep(cluster: &Cluster, witness: &Witness, folder: &std::path::Path) {
    std::fs::create_dir_all(folder).expect("the folder to keep logs in");
    for (name, log) in cluster.logs() {
        std::fs::write(folder.join(format!("{name}.log")), log).expect("a log");
    }
    let lines = witness.file(crate::witness::LINES);
    if lines.exists() {
        std::fs::copy(lines, folder.join("lines")).expect("the jobs' lines");
    }
}
