//! What is done to the cluster: each kind is inflicted on a victim that the seed chooses, its effect is looked for where anybody could
//! see it (API, logs, proxies, the jobs' lines), and it is healed. One without an effect does not count.

use std::time::Duration;

use jiff::Timestamp;
use nix::sys::signal::Signal;

use super::backend::Backend;
use super::cluster::{Cluster, SHARDS, Said};
use super::firing::Firing;
use super::jobs::ChaosJob;
use super::services::Services;
use crate::judge::{Harm, TroubleOf};
use crate::proxy::{Direction, Proxy};
use crate::seed::Seed;
use crate::until::{now, until_within};

/// For an effect that must come.
const EFFECT_PATIENCE: Duration = Duration::from_secs(20);
/// A little more than the time for which fires are claimed ahead.
const LOOK_AHEAD: Duration = Duration::from_millis(1_050);
const HOUR_S: i64 = 3600;
/// The clock of a node is asked for every 10 s.
const CLOCK_PATIENCE: Duration = Duration::from_secs(25);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    KillServer,
    StopServer,
    PauseServer,
    IsolateServer,
    KillAllServers,
    StepServerClock,
    ServerDiskFull,
    KillAgent,
    PauseAgent,
    CutLink,
    IsolateAgent,
    StepAgentClock,
    AgentDiskFull,
    KillMember,
    PauseMember,
    CoordinatorAway,
    StoreAway,
    SilenceStore,
}

impl Kind {
    pub const ALL: [Kind; 18] = [
        Kind::KillServer,
        Kind::KillAgent,
        Kind::CutLink,
        Kind::PauseServer,
        Kind::CoordinatorAway,
        Kind::IsolateServer,
        Kind::PauseAgent,
        Kind::KillMember,
        Kind::IsolateAgent,
        Kind::PauseMember,
        Kind::StoreAway,
        Kind::AgentDiskFull,
        Kind::StopServer,
        Kind::SilenceStore,
        Kind::KillAllServers,
        Kind::ServerDiskFull,
        Kind::StepAgentClock,
        Kind::StepServerClock,
    ];

    /// While it lasts nobody can start anything, however many servers there are.
    pub(super) fn lets_nothing_start(self, backend: Backend) -> bool {
        let one_server = backend == Backend::Sqlite;
        match self {
            Kind::CoordinatorAway | Kind::KillAllServers => true,
            Kind::KillServer | Kind::StopServer | Kind::PauseServer | Kind::IsolateServer => one_server,
            Kind::StepServerClock | Kind::ServerDiskFull => one_server,
            Kind::KillAgent | Kind::PauseAgent | Kind::CutLink | Kind::IsolateAgent | Kind::StepAgentClock => false,
            Kind::AgentDiskFull | Kind::KillMember | Kind::PauseMember | Kind::StoreAway | Kind::SilenceStore => false,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::KillServer => "server killed",
            Kind::StopServer => "server stopped gracefully",
            Kind::PauseServer => "server paused",
            Kind::IsolateServer => "server cut off from the coordinator",
            Kind::KillAllServers => "all servers killed",
            Kind::StepServerClock => "server's clock stepped by an hour",
            Kind::ServerDiskFull => "server's disk full",
            Kind::KillAgent => "agent killed",
            Kind::PauseAgent => "agent paused",
            Kind::CutLink => "link between agent and server cut",
            Kind::IsolateAgent => "agent cut off from all servers",
            Kind::StepAgentClock => "agent's clock stepped by an hour",
            Kind::AgentDiskFull => "agent's disk full",
            Kind::KillMember => "coordinator's member killed",
            Kind::PauseMember => "coordinator's member paused",
            Kind::CoordinatorAway => "coordinator away",
            Kind::StoreAway => "store away",
            Kind::SilenceStore => "store silent",
        }
    }

    /// The word for the command line.
    pub fn word(self) -> String {
        format!("{self:?}").chars().fold(String::new(), |word, c| match c {
            c if c.is_uppercase() && !word.is_empty() => word + "-" + &c.to_lowercase().to_string(),
            c => word + &c.to_lowercase().to_string(),
        })
    }

    pub(super) fn fits(self, backend: Backend, cluster: &Cluster) -> bool {
        let (several, apart) = (cluster.servers.len() > 1, !cluster.ground.member_addresses().is_empty());
        match self {
            Kind::StopServer | Kind::IsolateServer => several,
            Kind::KillMember | Kind::PauseMember | Kind::StoreAway | Kind::SilenceStore => apart,
            Kind::CoordinatorAway => backend != Backend::Sqlite,
            Kind::AgentDiskFull => cluster.agents.iter().any(|agent| agent.disk.is_some()),
            Kind::ServerDiskFull => cluster.servers.iter().any(|server| server.disk.is_some()),
            Kind::KillAllServers => several,
            Kind::KillServer
            | Kind::PauseServer
            | Kind::StepServerClock
            | Kind::KillAgent
            | Kind::PauseAgent
            | Kind::CutLink
            | Kind::IsolateAgent
            | Kind::StepAgentClock => true,
        }
    }
}

/// One fault that was inflicted and healed.
pub(super) struct Suffered {
    pub(super) kind: Kind,
    pub(super) from: Timestamp,
    pub(super) healed: Timestamp,
    /// Until then nobody could start anything, although it was not healed yet.
    pub(super) standstill_until: Option<Timestamp>,
    pub(super) of: TroubleOf,
    /// What was seen of it; none: it does not count.
    pub(super) effect: Option<String>,
    /// Until the shards of a server that went fired again.
    pub(super) takeover: Option<Duration>,
    /// Nothing fired although firing does not need what was away.
    pub(super) stood_still: Option<String>,
}

/// How bytes on a link are kept from arriving.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Refused,
    Held,
    Lost,
}

/// What a server sent to each member: in all, and in the last half of a TTL.
struct Worked {
    client: usize,
    before: Vec<u64>,
    lately: Vec<u64>,
}

impl Worked {
    fn most(&self) -> usize {
        (0..self.lately.len()).max_by_key(|member| self.lately[*member]).expect("members were asked for in `fits`")
    }
}

pub(super) struct Ordeal<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) firing: Firing<'a>,
    pub(super) jobs: &'a [ChaosJob],
    pub(super) services: &'a Services,
    pub(super) seed: Seed,
}

impl Ordeal<'_> {
    pub(super) async fn suffer(&mut self, kind: Kind) -> Suffered {
        let from = now();
        let mut suffered = Suffered {
            kind,
            from,
            healed: from,
            standstill_until: None,
            of: TroubleOf::Servers,
            effect: None,
            takeover: None,
            stood_still: None,
        };
        match kind {
            Kind::KillServer => self.kill_server(&mut suffered).await,
            Kind::StopServer => self.stop_server(&mut suffered).await,
            Kind::PauseServer => self.pause_server(&mut suffered).await,
            Kind::IsolateServer => self.isolate_server(&mut suffered).await,
            Kind::KillAllServers => self.kill_all_servers(&mut suffered).await,
            Kind::StepServerClock => self.step_server_clock(&mut suffered).await,
            Kind::ServerDiskFull => self.fill_server_disk(&mut suffered).await,
            Kind::KillAgent => self.kill_agent(&mut suffered).await,
            Kind::PauseAgent => self.pause_agent(&mut suffered).await,
            Kind::CutLink => self.cut_link(&mut suffered).await,
            Kind::IsolateAgent => self.isolate_agent(&mut suffered).await,
            Kind::StepAgentClock => self.step_agent_clock(&mut suffered).await,
            Kind::AgentDiskFull => self.fill_agent_disk(&mut suffered).await,
            Kind::KillMember => self.kill_member(&mut suffered).await,
            Kind::PauseMember => self.pause_member(&mut suffered).await,
            Kind::CoordinatorAway => self.take_coordinator_away(&mut suffered).await,
            Kind::StoreAway | Kind::SilenceStore => self.take_store_away(&mut suffered).await,
        }
        suffered
    }

    fn any_server(&mut self) -> usize {
        self.seed.below(self.cluster.servers.len() as u64) as usize
    }

    fn any_agent(&mut self) -> usize {
        self.seed.below(self.cluster.agents.len() as u64) as usize
    }

    /// One that a service runs on, which must then move.
    fn any_agent_in_service(&mut self) -> usize {
        let nodes = self.services.nodes();
        let of_service = |agent: &usize| nodes.contains(&self.cluster.agents[*agent].name);
        let agents: Vec<usize> = (0..self.cluster.agents.len()).filter(of_service).collect();
        match agents.len() as u64 {
            0 => self.any_agent(),
            count => agents[self.seed.below(count) as usize],
        }
    }

    fn of_node(&self, agent: usize, harm: Harm) -> TroubleOf {
        TroubleOf::Node(self.cluster.agents[agent].name.clone(), harm)
    }

    /// These nodes fire what is their own although nobody can tell them anything. None: they do.
    async fn which_do_not_fire_alone(&mut self, from: Timestamp, nodes: &[String]) -> Option<String> {
        let jobs: Vec<&ChaosJob> = self.jobs.iter().filter(|job| job.is_on_each()).collect();
        let silent = self.firing.until_each_fires(from + LOOK_AHEAD, nodes, &jobs, EFFECT_PATIENCE).await;
        (!silent.is_empty()).then(|| format!("{} fired nothing by itself", silent.join(", ")))
    }

    /// Between two numbers of tenths of the TTL.
    fn span(&mut self, from: u64, to: u64) -> Duration {
        self.cluster.ttl * (from + self.seed.below(to - from + 1)) as u32 / 10
    }

    fn any_manner(&mut self) -> Manner {
        [Manner::Refused, Manner::Held, Manner::Lost][self.seed.below(3) as usize]
    }

    fn of_shards<'j>(jobs: &'j [ChaosJob], shards: &[u64]) -> Vec<&'j ChaosJob> {
        jobs.iter().filter(|job| job.steady && shards.contains(&job.shard)).collect()
    }

    /// The other servers own every shard.
    async fn until_taken_over(&self, from: usize, patience: Duration) -> bool {
        let all_owned = async || {
            let mut owned = 0;
            for (_, server) in self.cluster.servers.iter().enumerate().filter(|(number, _)| *number != from) {
                owned += server.shards().await.len();
            }
            (owned == SHARDS).then_some(())
        };
        until_within(patience, all_owned).await.is_some()
    }

    async fn kill_server(&mut self, suffered: &mut Suffered) {
        let victim = self.any_server();
        let owned = self.cluster.servers[victim].shards().await;
        suffered.from = now();
        self.cluster.kill_server(victim);
        self.watch_takeover(victim, &owned, suffered).await;
        self.cluster.start_server(victim);
        self.cluster.until_serving(victim).await;
        suffered.healed = now();
    }

    async fn stop_server(&mut self, suffered: &mut Suffered) {
        let victim = self.any_server();
        let owned = self.cluster.servers[victim].shards().await;
        suffered.from = now();
        self.cluster.stop_server(victim).await;
        self.watch_takeover(victim, &owned, suffered).await;
        self.cluster.start_server(victim);
        self.cluster.until_serving(victim).await;
        suffered.healed = now();
    }

    /// With a single server there is nobody to take over: it has an effect when it is started again.
    async fn watch_takeover(&mut self, victim: usize, owned: &[u64], suffered: &mut Suffered) {
        if self.cluster.servers.len() == 1 {
            tokio::time::sleep(self.span(0, 15)).await;
            suffered.effect = Some("nothing served until it was started again".to_owned());
            return;
        }
        let jobs = Self::of_shards(self.jobs, owned);
        if self.until_taken_over(victim, EFFECT_PATIENCE).await && !jobs.is_empty() {
            // What was claimed ahead needs no server any more.
            let unclaimed = suffered.from + LOOK_AHEAD;
            let after = self.firing.until_again_after(unclaimed, &jobs, EFFECT_PATIENCE).await;
            suffered.takeover = after.map(|after| LOOK_AHEAD + after);
            suffered.effect = Some(format!("{} shards taken over", owned.len()));
        }
    }

    async fn pause_server(&mut self, suffered: &mut Suffered) {
        let victim = self.any_server();
        let span = self.span(5, 30);
        let owned = self.cluster.servers[victim].shards().await;
        suffered.from = now();
        self.cluster.servers[victim].signal(Signal::SIGSTOP);
        let (taken_over, ()) = tokio::join!(
            self.until_taken_over(victim, span.saturating_sub(self.cluster.ttl / 4)),
            tokio::time::sleep(span)
        );
        self.cluster.servers[victim].signal(Signal::SIGCONT);
        suffered.healed = now();
        if self.cluster.servers.len() > 1 && taken_over {
            suffered.effect = Some(format!("paused for {span:?}: {} shards taken over", owned.len()));
            return;
        }
        let names: Vec<&str> = Self::of_shards(self.jobs, &owned).iter().map(|job| job.name.as_str()).collect();
        tokio::time::sleep(self.cluster.ttl / 2).await;
        let held_up = self.firing.held_up(suffered.from, suffered.healed, |line| names.contains(&line.job.as_str()));
        suffered.effect = (held_up > 0).then(|| format!("paused for {span:?}: {held_up} starts held up"));
    }

    async fn isolate_server(&mut self, suffered: &mut Suffered) {
        let victim = self.any_server();
        let manner = self.any_manner();
        let span = self.span(20, 30);
        let said = [self.cluster.said(self.cluster.servers[victim].name())];
        suffered.from = now();
        for link in self.cluster.servers[victim].coordinator_links() {
            cut(link, manner, &Direction::BOTH);
        }
        let (said, taken_over, ()) = tokio::join!(
            until_say_away("coordinator", &said),
            self.until_taken_over(victim, EFFECT_PATIENCE),
            tokio::time::sleep(span)
        );
        self.cluster.servers[victim].coordinator_links().into_iter().for_each(Proxy::heal);
        suffered.healed = now();
        if said && taken_over {
            suffered.effect = Some(format!("{manner:?}: it says that the coordinator is away; shards taken over"));
        }
    }

    async fn kill_all_servers(&mut self, suffered: &mut Suffered) {
        let count = self.cluster.servers.len();
        suffered.from = now();
        (0..count).for_each(|number| self.cluster.kill_server(number));
        tokio::time::sleep(self.span(2, 20)).await;
        suffered.stood_still = self.which_do_not_fire_alone(suffered.from, &self.cluster.nodes()).await;
        (0..count).for_each(|number| self.cluster.start_server(number));
        for number in 0..count {
            self.cluster.until_serving(number).await;
        }
        suffered.healed = now();
        suffered.effect = Some("nothing served until they were started again".to_owned());
    }

    async fn step_server_clock(&mut self, suffered: &mut Suffered) {
        let seconds = if self.seed.below(2) == 0 { HOUR_S } else { -HOUR_S };
        let victim = &self.cluster.servers[0];
        let said = self.cluster.said(victim.name());
        suffered.from = now();
        victim.clock.as_ref().expect("the first server has one").step(seconds);
        let says_so = async || said.since().contains("clock").then_some(());
        let seen = until_within(CLOCK_PATIENCE, says_so).await;
        tokio::time::sleep(self.span(5, 10)).await;
        self.cluster.servers[0].clock.as_ref().expect("the first server has one").step(0);
        suffered.healed = now();
        suffered.effect = seen.map(|()| format!("it says that its clock is off by {seconds} s"));
    }

    async fn fill_server_disk(&mut self, suffered: &mut Suffered) {
        let span = self.span(10, 30);
        let server = &self.cluster.servers[0];
        let disk = server.disk.as_ref().expect("asked for in `fits`");
        let said = [self.cluster.said(server.name())];
        suffered.from = now();
        disk.fill();
        let (seen, ()) = tokio::join!(until_say_away("coordinator", &said), tokio::time::sleep(span));
        disk.make_room();
        suffered.healed = now();
        suffered.effect = seen.then(|| "it says that its database is away".to_owned());
    }

    async fn kill_agent(&mut self, suffered: &mut Suffered) {
        let victim = self.any_agent_in_service();
        suffered.of = self.of_node(victim, Harm::Killed);
        let before = self.incarnation(victim).await;
        suffered.from = now();
        self.cluster.kill_agent(victim);
        tokio::time::sleep(self.span(0, 20)).await;
        self.cluster.start_agent(victim);
        suffered.healed = now();
        suffered.effect = self.until_new_incarnation(victim, before).await;
    }

    async fn incarnation(&self, agent: usize) -> Option<u64> {
        self.cluster.node(agent).await?["incarnation"].as_u64()
    }

    async fn until_new_incarnation(&self, agent: usize, before: Option<u64>) -> Option<String> {
        let is_new = async || {
            let node = self.cluster.node(agent).await?;
            (node["connected"] == true && node["incarnation"].as_u64() > before).then_some(())
        };
        until_within(EFFECT_PATIENCE, is_new).await.map(|()| "it came back as a new incarnation".to_owned())
    }

    async fn pause_agent(&mut self, suffered: &mut Suffered) {
        let victim = self.any_agent_in_service();
        let span = self.span(5, 30);
        let name = self.cluster.agents[victim].name.clone();
        suffered.of = self.of_node(victim, Harm::Paused);
        let before = self.incarnation(victim).await;
        suffered.from = now();
        self.cluster.agents[victim].signal(Signal::SIGSTOP);
        tokio::time::sleep(span).await;
        self.cluster.agents[victim].signal(Signal::SIGCONT);
        suffered.healed = now();
        let held_up = async || {
            let count = self.firing.held_up(suffered.from, suffered.healed, |line| line.node == name);
            (count > 0).then_some(count)
        };
        suffered.effect = match until_within(self.cluster.ttl / 2, held_up).await {
            Some(count) => Some(format!("paused for {span:?}: {count} starts held up")),
            None if span > self.cluster.ttl => self.until_new_incarnation(victim, before).await,
            None => None,
        };
    }

    async fn cut_link(&mut self, suffered: &mut Suffered) {
        let (agent, server) = (self.any_agent(), self.any_server());
        let manner = self.any_manner();
        let directions: &[Direction] =
            [&[Direction::Requests][..], &[Direction::Answers], &Direction::BOTH][self.seed.below(3) as usize];
        let span = self.span(5, 30);
        if self.cluster.servers.len() == 1 {
            // The only server that it has.
            suffered.of = self.of_node(agent, Harm::CutOff);
        }
        let link = &self.cluster.agents[agent].links[server];
        let (made, withheld) = (link.connections_made(), link.withheld_bytes());
        suffered.from = now();
        cut(link, manner, directions);
        tokio::time::sleep(span).await;
        let withheld = link.withheld_bytes() - withheld;
        link.heal();
        suffered.healed = now();
        let again = async || (link.connections_made() > made).then_some(());
        suffered.effect = match manner {
            Manner::Refused => until_within(EFFECT_PATIENCE, again).await.map(|()| "it connected again".to_owned()),
            Manner::Held | Manner::Lost => {
                (withheld > 0).then(|| format!("{directions:?} {manner:?}: {withheld} bytes withheld"))
            }
        };
    }

    async fn isolate_agent(&mut self, suffered: &mut Suffered) {
        let victim = self.any_agent_in_service();
        let manner = self.any_manner();
        let span = self.span(16, 35);
        suffered.of = self.of_node(victim, Harm::CutOff);
        let before = self.incarnation(victim).await;
        suffered.from = now();
        self.cluster.agents[victim].links.iter().for_each(|link| cut(link, manner, &Direction::BOTH));
        tokio::time::sleep(span).await;
        let alone = [self.cluster.agents[victim].name.clone()];
        suffered.stood_still = self.which_do_not_fire_alone(suffered.from, &alone).await;
        self.cluster.agents[victim].links.iter().for_each(Proxy::heal);
        suffered.healed = now();
        suffered.effect = self.until_new_incarnation(victim, before).await;
    }

    async fn step_agent_clock(&mut self, suffered: &mut Suffered) {
        let seconds = if self.seed.below(2) == 0 { HOUR_S } else { -HOUR_S };
        suffered.from = now();
        self.cluster.agents[0].clock.as_ref().expect("the first agent has one").step(seconds);
        let seen = self.until_clock_offset(|offset_ms| offset_ms.abs() > HOUR_S * 900).await;
        self.cluster.agents[0].clock.as_ref().expect("the first agent has one").step(0);
        suffered.healed = now();
        let back = self.until_clock_offset(|offset_ms| offset_ms.abs() < 1000).await;
        suffered.effect = (seen && back).then(|| format!("its clock is shown off by {seconds} s"));
    }

    async fn until_clock_offset(&self, wanted: impl Fn(i64) -> bool) -> bool {
        let is_so = async || {
            let offset = self.cluster.node(0).await?["clock_offset_ms"].as_i64()?;
            wanted(offset).then_some(())
        };
        until_within(CLOCK_PATIENCE, is_so).await.is_some()
    }

    async fn fill_agent_disk(&mut self, suffered: &mut Suffered) {
        let span = self.span(10, 25);
        let agent = self.cluster.agents.iter().find(|agent| agent.disk.is_some()).expect("asked for in `fits`");
        let disk = agent.disk.as_ref().expect("it has one");
        suffered.of = TroubleOf::Node(agent.name.clone(), Harm::DiskFull);
        let said = self.cluster.said(&agent.name);
        suffered.from = now();
        disk.fill();
        let full = async || said.since().contains("the spool cannot be written").then_some(());
        let (full, ()) = tokio::join!(until_within(EFFECT_PATIENCE, full), tokio::time::sleep(span));
        disk.make_room();
        suffered.healed = now();
        let well = async || said.since().contains("the spool can be written again").then_some(());
        let well = until_within(EFFECT_PATIENCE, well).await;
        suffered.effect = full.and(well).map(|()| "its spool could not be written, and then again".to_owned());
    }

    /// One that a server works with: it has an effect when that server turns to another one with its requests.
    async fn kill_member(&mut self, suffered: &mut Suffered) {
        let client = self.any_server();
        let worked = self.work_with_members(client).await;
        let member = worked.most();
        suffered.from = now();
        self.cluster.ground.kill_member(member);
        suffered.standstill_until = self.until_elected().await;
        suffered.effect = self.until_turned(&worked, member).await;
        tokio::time::sleep(self.span(5, 20)).await;
        self.cluster.ground.restart_member(member);
        suffered.healed = now();
    }

    /// Only its silence tells that it is away, to its clients and to the other members. Half of the time it is the one that leads them.
    async fn pause_member(&mut self, suffered: &mut Suffered) {
        let client = self.any_server();
        let worked = self.work_with_members(client).await;
        let leader = self.cluster.ground.leading_member();
        let member = leader.filter(|_| self.seed.below(2) == 0).unwrap_or_else(|| worked.most());
        let span = self.span(10, 30);
        suffered.from = now();
        self.cluster.ground.pause_member(member);
        let paused = tokio::time::Instant::now();
        suffered.standstill_until = self.until_elected().await;
        let steady: Vec<&ChaosJob> = self.jobs.iter().filter(|job| job.steady).collect();
        // What was claimed ahead needs no coordinator any more.
        let unclaimed = suffered.standstill_until.unwrap_or(suffered.from) + LOOK_AHEAD;
        let again = self.firing.until_again_after(unclaimed, &steady, EFFECT_PATIENCE).await;
        suffered.takeover = again.map(|after| LOOK_AHEAD + after);
        if again.is_none() {
            suffered.stood_still =
                Some(format!("not all fired again beside a paused member within {EFFECT_PATIENCE:?}"));
        }
        let turned = self.until_turned(&worked, member).await;
        tokio::time::sleep_until(paused + span).await;
        self.cluster.ground.resume_member(member);
        suffered.healed = now();
        let led = (leader == Some(member)).then(|| "it had led the others".to_owned());
        suffered.effect = led.into_iter().chain(turned).reduce(|led, turned| format!("{led}; {turned}"));
    }

    async fn work_with_members(&self, client: usize) -> Worked {
        let earlier = self.requested(client);
        tokio::time::sleep(self.cluster.ttl / 2).await;
        let before = self.requested(client);
        let lately = before.iter().zip(earlier).map(|(now, earlier)| now - earlier).collect();
        Worked { client, before, lately }
    }

    fn requested(&self, client: usize) -> Vec<u64> {
        self.cluster.servers[client].member_links.iter().map(Proxy::requested_bytes).collect()
    }

    /// While the others elect a leader the coordinator is away.
    async fn until_elected(&self) -> Option<Timestamp> {
        let elected = async || self.cluster.ground.has_leader().then(now);
        until_within(EFFECT_PATIENCE, elected).await
    }

    /// The server that had worked with this member sends as much to another one.
    async fn until_turned(&self, worked: &Worked, member: usize) -> Option<String> {
        let lately = Some(worked.lately[member]).filter(|bytes| *bytes > 0)?;
        let turned = async || {
            let asked = self.requested(worked.client).into_iter().zip(&worked.before).enumerate();
            let others = asked.filter(|(other, _)| *other != member).map(|(_, (now, before))| now - before);
            others.max().is_some_and(|most| most >= lately).then_some(())
        };
        let name = self.cluster.servers[worked.client].name();
        until_within(EFFECT_PATIENCE, turned)
            .await
            .map(|()| format!("{name} had worked with it, and turned to another one"))
    }

    async fn take_coordinator_away(&mut self, suffered: &mut Suffered) {
        let span = self.span(10, 30);
        let members = self.cluster.ground.member_addresses().len();
        let said = self.all_said();
        suffered.from = now();
        if members == 0 {
            self.cluster.ground.kill_database();
        } else {
            (1..members).for_each(|member| self.cluster.ground.kill_member(member));
        }
        let (all_say_so, ()) = tokio::join!(until_say_away("coordinator", &said), tokio::time::sleep(span));
        suffered.stood_still = self.which_do_not_fire_alone(suffered.from, &self.cluster.nodes()).await;
        if members == 0 {
            self.cluster.ground.restart_database();
        } else {
            (1..members).for_each(|member| self.cluster.ground.restart_member(member));
        }
        suffered.healed = now();
        suffered.effect = all_say_so.then(|| format!("away for {span:?}, and every server says so"));
    }

    fn all_said(&self) -> Vec<Said> {
        self.cluster.servers.iter().map(|server| self.cluster.said(server.name())).collect()
    }

    /// Firing never waits for the store.
    async fn take_store_away(&mut self, suffered: &mut Suffered) {
        let span = self.span(15, 40);
        let said = self.all_said();
        suffered.from = now();
        let silent = suffered.kind == Kind::SilenceStore;
        if silent {
            self.cluster.ground.suspend_database();
        } else {
            self.cluster.ground.kill_database();
        }
        let (all_say_so, ()) = tokio::join!(until_say_away("store", &said), tokio::time::sleep(span));
        let fired = self.firing.count(suffered.from + self.cluster.ttl / 4, now(), self.jobs);
        if fired == 0 {
            suffered.stood_still = Some(format!("nothing fired for {span:?}: {}", suffered.kind.name()));
        }
        if silent {
            self.cluster.ground.resume_database();
        } else {
            self.cluster.ground.restart_database();
        }
        suffered.healed = now();
        suffered.effect = all_say_so.then(|| format!("away for {span:?}; {fired} runs started meanwhile"));
    }
}

/// Each of these servers says that it does not reach a part.
async fn until_say_away(part: &str, said: &[Said]) -> bool {
    let complaint = format!("the {part} does not answer");
    let all = async || said.iter().all(|said| said.since().contains(&complaint)).then_some(());
    until_within(EFFECT_PATIENCE, all).await.is_some()
}

fn cut(link: &Proxy, manner: Manner, directions: &[Direction]) {
    match manner {
        Manner::Refused => link.cut(),
        Manner::Held => directions.iter().for_each(|direction| link.hold(*direction)),
        Manner::Lost => directions.iter().for_each(|direction| link.swallow(*direction)),
    }
}
