//! What the local API asks: its jobs and runs, a definition from the centre, a job that is to be off on this host, the end of a run.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use belfry_core::run::Outcome;
use belfry_core::units::Span;
use belfry_core::{JobId, RunId};
use belfry_proto::session::{AskJobs, DisabledJob, DisabledJobs, Ended, from_agent};

use super::{Desk, KillOrder, Live, LiveState, SessionId};
use crate::clock::Moment;
use crate::key::Key;
use crate::local::{NotDisabled, instant};
use crate::local_api::{Asker, NoReply, Question, Reply, TaskView};

/// How long the centre may take.
const FETCH_WITHIN: Duration = Duration::from_secs(10);
/// Besides the one with each contact anew.
const SYNC_EVERY: Duration = Duration::from_secs(3600);
/// Runs that are over, shown beside those that go on.
const RECENT_MAX: usize = 100;

pub(super) struct Asked {
    last_token: u64,
    /// Whoever waits for a list of the centre, by the token that it will come with.
    fetches: HashMap<u64, Fetch>,
    /// Whoever waits for the disk, by ticket.
    unwritten: HashMap<u64, (Asker, Reply)>,
    recent: VecDeque<TaskView>,
    next_sync: Duration,
}

struct Fetch {
    job: JobId,
    asker: Asker,
    until: Duration,
}

impl Asked {
    pub(super) fn new(now: Moment) -> Asked {
        Asked {
            last_token: 0,
            fetches: HashMap::new(),
            unwritten: HashMap::new(),
            recent: VecDeque::new(),
            next_sync: now.boot + SYNC_EVERY,
        }
    }

    fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.fetches.values().map(|fetch| fetch.until).min()
    }
}

impl Desk {
    pub(super) fn asked(&mut self, question: Question, asker: Asker, now: Moment) {
        let reply = match question {
            Question::Jobs => Ok(Reply::Jobs(self.local.views())),
            Question::Job(wanted) => self.local_job(&wanted).and_then(|id| self.job_reply(id)),
            Question::Tasks => Ok(Reply::Tasks(self.tasks())),
            Question::Task(wanted) => self.task(&wanted).map(|task| Reply::Task(Box::new(task))),
            Question::Kill(wanted) => self.kill_task(&wanted, now),
            Question::Fetch(wanted) => return self.fetch(&wanted, asker, now),
            Question::Disable(wanted) => return self.disable(&wanted, asker),
        };
        asker.hears(reply);
    }

    fn local_job(&self, wanted: &str) -> Result<JobId, NoReply> {
        self.local.find(wanted).ok_or_else(|| not_here(wanted))
    }

    fn job_reply(&self, id: JobId) -> Result<Reply, NoReply> {
        self.local.view(id).map(|view| Reply::Job(Box::new(view))).ok_or_else(|| not_here(&id.to_string()))
    }

    fn fetch(&mut self, wanted: &str, asker: Asker, now: Moment) {
        let Some(job) = self.local.find(wanted).or_else(|| wanted.parse().ok()) else {
            let message = format!("`{wanted}` is no job here; a job that is not here yet is asked for by its id");
            return asker.hears(Err(NoReply::NotFound(message)));
        };
        let token = self.asked.new_token();
        if !self.ask_centre(AskJobs { shard: Some(job.shard().0.into()), token }) {
            return asker.hears(Err(NoReply::NoServer));
        }
        self.asked.fetches.insert(token, Fetch { job, asker, until: now.boot + FETCH_WITHIN });
    }

    /// Only the server that owns the shard answers. False: there is no contact.
    fn ask_centre(&mut self, ask: AskJobs) -> bool {
        let sessions = self.peers.all_ready();
        for session in &sessions {
            self.send(*session, from_agent::Message::AskJobs(ask));
        }
        !sessions.is_empty()
    }

    /// A whole list of a shard has come, and is in. It answers all who asked up to this token.
    pub(super) fn list_came(&mut self, shard: u32, token: u64, now: Moment) {
        let of_shard = |fetch: &Fetch| u32::from(fetch.job.shard().0) == shard;
        let answered = self.asked.fetches.extract_if(|asked, fetch| *asked <= token && of_shard(fetch));
        for (_, fetch) in answered.collect::<Vec<_>>() {
            self.fetched(fetch, now);
        }
    }

    fn fetched(&mut self, Fetch { job, asker, .. }: Fetch, now: Moment) {
        if self.local.view(job).is_none() {
            let message = format!("the centre has no job `{job}` that this host is to run by itself");
            return asker.hears(Err(NoReply::NotFound(message)));
        }
        let enabled = self.local.enable(job, now);
        if enabled.is_some() {
            tracing::info!(%job, "the job fires on this host again, by the local API");
            self.tell_disabled();
        }
        let reply = self.job_reply(job);
        self.reply_when_written(asker, reply, enabled);
    }

    fn disable(&mut self, wanted: &str, asker: Asker) {
        let disabled = self.local_job(wanted).and_then(|id| match self.local.disable(id) {
            Ok(record) => Ok((id, record)),
            Err(NotDisabled::NotHere) => Err(not_here(wanted)),
            Err(NotDisabled::TooMany) => {
                Err(NoReply::Refused("too many jobs are disabled here; pause them at the centre".to_owned()))
            }
        });
        match disabled {
            Err(why) => asker.hears(Err(why)),
            Ok((job, record)) => {
                if record.is_some() {
                    tracing::warn!(%job, "the job is disabled on this host, by the local API");
                    self.tell_disabled();
                }
                let reply = self.job_reply(job);
                self.reply_when_written(asker, reply, record);
            }
        }
    }

    fn reply_when_written(
        &mut self,
        asker: Asker,
        reply: Result<Reply, NoReply>,
        record: Option<crate::local::Record>,
    ) {
        match (self.keep_local(record.into_iter().collect()), reply) {
            (Some(ticket), Ok(reply)) => drop(self.asked.unwritten.insert(ticket, (asker, reply))),
            (_, reply) => asker.hears(reply),
        }
    }

    pub(super) fn answer_written(&mut self, ticket: u64) {
        if let Some((asker, reply)) = self.asked.unwritten.remove(&ticket) {
            asker.hears(Ok(reply));
        }
    }

    pub(super) fn tell_disabled(&mut self) {
        self.peers.all_ready().into_iter().for_each(|session| self.tell_disabled_to(session));
    }

    /// All of them: what is not among them is not disabled any more.
    pub(super) fn tell_disabled_to(&mut self, session: SessionId) {
        let jobs = self.local.disabled().map(|(id, name)| DisabledJob { id: id.to_string(), name }).collect();
        self.send(session, from_agent::Message::DisabledJobs(DisabledJobs { jobs }));
    }

    pub(super) fn give_up_fetches(&mut self, now: Moment) {
        let late = self.asked.fetches.extract_if(|_, fetch| fetch.until <= now.boot);
        for (_, fetch) in late {
            fetch.asker.hears(Err(NoReply::TooLate(Span::from(FETCH_WITHIN).to_string())));
        }
    }

    /// All jobs are compared with the centre's now and then; to be called when there is contact.
    pub(super) fn sync_in_time(&mut self, now: Moment) {
        if self.asked.next_sync <= now.boot {
            self.asked.next_sync = now.boot + SYNC_EVERY;
            let token = self.asked.new_token();
            self.ask_centre(AskJobs { shard: None, token });
        }
    }

    fn tasks(&self) -> Vec<TaskView> {
        let mut tasks: Vec<TaskView> = self.live.iter().map(|(key, live)| view(*key, live)).collect();
        tasks.sort_by_key(|task| (task.id, task.attempt));
        tasks.extend(self.asked.recent.iter().rev().cloned());
        tasks
    }

    fn task(&self, wanted: &str) -> Result<TaskView, NoReply> {
        let run: Option<RunId> = wanted.parse().ok();
        let live = run.and_then(|run| self.live_of(run)).and_then(|key| Some(view(key, self.live.get(&key)?)));
        let recent = || self.asked.recent.iter().rev().find(|task| Some(task.id) == run).cloned();
        live.or_else(recent).ok_or_else(|| NoReply::NotFound(format!("this node has no run `{wanted}`")))
    }

    fn live_of(&self, run: RunId) -> Option<Key> {
        self.live.keys().filter(|key| key.run == run).max().copied()
    }

    /// The answer does not wait for its end.
    fn kill_task(&mut self, wanted: &str, now: Moment) -> Result<Reply, NoReply> {
        let task = self.task(wanted)?;
        let Some(key) = self.live_of(task.id) else {
            return Err(NoReply::Refused(format!("run `{wanted}` has ended already: {}", task.state)));
        };
        let reason = format!("killed through the local API of {}", self.facts.name);
        tracing::warn!(%key, "{reason}");
        if self.is_waiting(key) {
            self.never_start(key, Outcome::Cancelled, reason, now);
        } else if let Some(live) = self.live.get(&key) {
            live.kill(KillOrder { grace: None, reason, abandoned: false });
        }
        self.task(wanted).map(|task| Reply::Task(Box::new(task)))
    }

    /// It is over, and is shown for a while.
    pub(super) fn remember_task(&mut self, key: Key, live: &Live, ended: &Ended) {
        if self.asked.recent.len() >= RECENT_MAX {
            self.asked.recent.pop_front();
        }
        self.asked.recent.push_back(TaskView {
            state: ended.outcome.clone(),
            reason: Some(ended.reason.clone()).filter(|reason| !reason.is_empty()),
            started_at: ended.started_at_ms.map(instant),
            ended_at: Some(instant(ended.ended_at_ms)),
            exit_code: ended.exit_code,
            ..view(key, live)
        });
    }
}

fn not_here(wanted: &str) -> NoReply {
    NoReply::NotFound(format!("this host has no job `{wanted}` that it runs by itself (run_on: each or home)"))
}

fn view(key: Key, live: &Live) -> TaskView {
    let state = match &live.state {
        LiveState::Waiting(_) => "waiting",
        LiveState::Starting { .. } => "starting",
        LiveState::Running { .. } => "running",
        LiveState::Settling { .. } => "ending",
    };
    TaskView {
        id: key.run,
        attempt: key.attempt,
        job: live.name.to_string(),
        job_id: live.job,
        state: state.to_owned(),
        reason: None,
        planned: instant(live.planned_ms),
        started_at: live.started_at_ms().map(instant),
        ended_at: None,
        exit_code: None,
    }
}
