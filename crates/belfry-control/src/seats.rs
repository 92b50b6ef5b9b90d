//! Which seats this server holds: its fair share of the shards, and the leadership. Looks at heartbeats and seats every TTL/4, takes
//! what is vacant, gives back what is more than its share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belfry_coord::{
    Commit, CoordError, Entry, Former, Heartbeat, Held, Life, Liveness, Observer, Seat, Taking, Vacancy, Watch, former,
    keys,
};
use belfry_core::cursor::Cursor;
use belfry_core::id::SHARD_COUNT;
use belfry_core::{ServerId, ShardId, Term, Version};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::context::Context;
use crate::feed::Feed;
use crate::peers::Info;
use crate::shard::{Left, Shard, ShardMessage};

/// A shard that this server holds, or believes to hold.
struct Owned {
    term: Term,
    inbox: mpsc::Sender<ShardMessage>,
}

/// The seats of the shards as a look has shown them; those that nobody ever held are missing.
type Looked = BTreeMap<ShardId, Seat<Cursor>>;

const TAKE_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Tells when shards were given back. Some backends hint at every change of anything, so the key is looked at.
struct Vacated {
    watch: Watch,
    seen: Option<Version>,
}

impl Vacated {
    fn of(context: &Context) -> Self {
        Self { watch: Watch::on(context.coordinator.clone(), keys::VACATED), seen: None }
    }

    /// Looks every TTL/4 find everything too.
    async fn again(&mut self, context: &Context) {
        loop {
            self.watch.changed().await;
            let Ok(Some(entry)) = context.coordinator.get(keys::VACATED).await else { continue };
            if self.seen.replace(entry.version) != Some(entry.version) {
                return;
            }
        }
    }
}

/// Takes seats until it is told to stop, then gives all of them back.
pub struct Seats {
    context: Arc<Context>,
    feed: Feed,
    observer: Observer,
    former: Former,
    held: HashMap<ShardId, Owned>,
    /// Of these, the ones that were told to give their seat back.
    leaving: HashSet<ShardId>,
    tell_left: mpsc::Sender<(ShardId, Left)>,
    left: mpsc::Receiver<(ShardId, Left)>,
    leadership: Option<Held<()>>,
    clock_was_off: bool,
    /// Since when each shard was seen without an owner, on this server's own clock.
    vacant_since: HashMap<ShardId, Duration>,
    /// Nobody took what was given back: nothing more is, until then.
    no_gifts_until: Duration,
}

impl Seats {
    pub fn new(context: Arc<Context>, feed: Feed) -> Self {
        let observer = Observer::new(context.config.ttl);
        let own = keys::server(context.server);
        let former = Former::new(own, context.config.ttl, context.coordinator.sole_user());
        let (tell_left, left) = mpsc::channel(SHARD_COUNT as usize);
        Self {
            context,
            feed,
            observer,
            former,
            held: HashMap::new(),
            leaving: HashSet::new(),
            tell_left,
            left,
            leadership: None,
            clock_was_off: false,
            vacant_since: HashMap::new(),
            no_gifts_until: Duration::ZERO,
        }
    }

    /// `first` is answered when the first look has been acted on; `stop` ends it.
    pub async fn keep(mut self, first: oneshot::Sender<()>, stop: oneshot::Receiver<()>) {
        let mut first = Some(first);
        let mut stop = stop;
        let mut vacated = Vacated::of(&self.context);
        loop {
            match self.look().await {
                Ok(()) => {
                    self.context.coordinator_health.ok();
                    if let Some(first) = first.take() {
                        let _ = first.send(());
                    }
                }
                Err(cause) => self.context.coordinator_health.away(self.context.now(), &cause),
            }
            tokio::select! {
                _ = &mut stop => break,
                Some((shard, left)) = self.left.recv() => self.left(shard, left).await,
                () = vacated.again(&self.context) => {}
                () = tokio::time::sleep(self.context.config.ttl / 4) => {}
            }
        }
        self.give_back().await;
    }

    async fn left(&mut self, shard: ShardId, left: Left) {
        self.held.remove(&shard);
        self.leaving.remove(&shard);
        match left {
            Left::Deposed => {
                warn!(%shard, "the shard has another owner, or was not as it was read; it is taken again if it is vacant");
                // Should the same thing happen again, it does not happen hundreds of times a second.
                tokio::time::sleep(TAKE_AGAIN_AFTER).await;
            }
            // With the last of those that were given away together.
            Left::Released if self.leaving.is_empty() => self.context.announce(keys::VACATED).await,
            Left::Released => {}
        }
    }

    async fn look(&mut self) -> Result<(), CoordError> {
        let servers = self.context.coordinator.list(keys::SERVERS).await?;
        let boottime = self.context.clock.boottime();
        self.observer.observe(&servers, boottime);
        let gone = self.former.look(&servers, boottime);
        // Also without a shard, whose looks would notice that the clock was set right again.
        self.context.trusts_clock();
        let clock_off = self.own_clock_off();
        let (alive, firing) = self.alive(&servers, boottime);
        let share = if clock_off { 0 } else { usize::from(SHARD_COUNT).div_ceil(firing + 1) };
        let mut seats = Looked::new();
        for entry in self.context.coordinator.list(keys::SHARDS).await? {
            if let Some(shard) = keys::shard_of(&entry.key) {
                seats.insert(shard, Seat::from_entry(&entry)?);
            }
        }
        let owned = |seat: &Seat<Cursor>| Some((seat.owner()?, seat.held.as_ref()?.1.term));
        let owners = seats.iter().filter_map(|(shard, seat)| Some((*shard, owned(seat)?)));
        self.context.peers.saw(&self.context, alive, owners.collect());
        self.let_go_of_taken(&seats).await;
        self.take_shards(share, seats).await?;
        self.give_back_more_than(share).await;
        if clock_off {
            self.give_back_leadership().await
        } else {
            self.lead().await?
        }
        if self.leadership.is_some() && !gone.is_empty() {
            let count = gone.len();
            if let Commit::Applied(_) = former::remove(&*self.context.coordinator, gone).await? {
                info!("the heartbeats of {count} servers that are gone are removed");
            }
        }
        Ok(())
    }

    /// The servers that live, and how many of the others fire: one whose clock is off has given up its share, for them to take.
    fn alive(&self, servers: &[Entry], boottime: Duration) -> (BTreeMap<ServerId, Info>, usize) {
        let mine = keys::server(self.context.server);
        let sole = self.context.coordinator.sole_user();
        let (mut alive, mut firing) = (BTreeMap::new(), 0);
        for entry in servers {
            let is_mine = entry.key == mine;
            if !is_mine && (sole || self.observer.liveness(&entry.key, boottime) != Liveness::Alive) {
                continue;
            }
            let Some(beat) = Heartbeat::decode(entry).ok().filter(|beat| beat.life == Life::Beating) else { continue };
            let info = Info::of(beat);
            firing += usize::from(!is_mine && info.as_ref().is_none_or(|info| info.clock_off_ms.is_none()));
            alive.extend(entry.key.strip_prefix(keys::SERVERS).and_then(|id| id.parse().ok()).zip(info));
        }
        (alive, firing)
    }

    /// Says it when it changes.
    fn own_clock_off(&mut self) -> bool {
        let off = self.context.own_clock_off_ms();
        match off {
            Some(ms) if !self.clock_was_off => tracing::error!(
                "the clock of this server is off by {ms} ms against its agents; it fires nothing until that is mended"
            ),
            None if self.clock_was_off => info!("the clock of this server agrees with its agents again"),
            Some(_) | None => {}
        }
        self.clock_was_off = off.is_some();
        self.clock_was_off
    }

    /// A shard that was taken while this server stood still is held by its commits' guards alone, and one without work commits
    /// nothing: unless it is let go here it counts for ever, and as much of what is vacant stays so. A term only grows, so a
    /// greater one is proof also in an old list.
    async fn let_go_of_taken(&self, seats: &Looked) {
        if belfry_core::planted::is("commit_without_guards") {
            return;
        }
        for (shard, owned) in &self.held {
            let held = seats.get(shard).and_then(|seat| seat.held.as_ref());
            if held.is_some_and(|(_, record)| record.term > owned.term) {
                let _ = owned.inbox.send(ShardMessage::Deposed).await;
            }
        }
    }

    /// What was taken before the coordinator failed is loaded all the same: it is held, and nobody else would fire it.
    async fn take_shards(&mut self, share: usize, seats: Looked) -> Result<(), CoordError> {
        let mut taken = Vec::new();
        let result = self.take_vacant(share, seats, &mut taken).await;
        if !taken.is_empty() {
            info!("{} of {SHARD_COUNT} shards taken", taken.len());
            self.feed.load(taken).await;
        }
        result
    }

    /// What is ours without a task of ours comes first, and beyond the share: a taking, or a giving back, whose answer was lost. While
    /// this server lives nobody else may take it, so it would stand still; what is more than the share is given back from there.
    /// So is what nobody takes: a server that is gone and not held dead yet makes the share too small, and takes nothing.
    async fn take_vacant(&mut self, share: usize, seats: Looked, taken: &mut Vec<ShardId>) -> Result<(), CoordError> {
        let mut vacant = self.vacant(seats);
        vacant.sort_by_key(|(_, _, by)| *by != Vacancy::Mine);
        let boottime = self.context.clock.boottime();
        self.vacant_since.retain(|known, _| vacant.iter().any(|(shard, ..)| shard == known));
        for (shard, seat, by) in vacant {
            let since = *self.vacant_since.entry(shard).or_insert(boottime);
            let is_left_over = share > 0 && boottime.saturating_sub(since) >= self.context.config.ttl / 4;
            if self.held.len() >= share && by != Vacancy::Mine {
                if !is_left_over {
                    continue;
                }
                self.no_gifts_until = boottime + self.context.config.ttl;
            }
            let first = Cursor::starting(self.context.now());
            let (coordinator, mark) = (self.context.coordinator.clone(), Some(keys::taken(shard)));
            match seat.take_with_mark(coordinator, self.context.server, by, first, mark).await? {
                Taking::Taken(held) => {
                    self.context.compare_clock(held.extra().at);
                    taken.push(self.open(shard, held));
                }
                Taking::Refused { .. } => {} // someone was quicker
            }
        }
        Ok(())
    }

    fn vacant(&self, mut seats: Looked) -> Vec<(ShardId, Seat<Cursor>, Vacancy)> {
        let boottime = self.context.clock.boottime();
        let sole = self.context.coordinator.sole_user();
        let mut vacant = Vec::new();
        for shard in ShardId::all().filter(|shard| !self.held.contains_key(shard)) {
            let seat = seats.remove(&shard).unwrap_or_else(|| Seat { key: keys::shard(shard), held: None });
            let by = seat.vacancy(self.context.server, sole, &self.observer, boottime);
            vacant.extend(by.map(|by| (shard, seat, by)));
        }
        vacant
    }

    fn open(&mut self, shard: ShardId, held: Held<Cursor>) -> ShardId {
        let term = held.term();
        let (inbox, task) = Shard::open(self.context.clone(), shard, held);
        self.context.shards.open(shard, inbox.clone());
        self.held.insert(shard, Owned { term, inbox });
        let left = self.tell_left.clone();
        self.context.tasks.spawn("shard", async move {
            let how = task.await;
            let _ = left.send((shard, how)).await;
        });
        shard
    }

    async fn give_back_more_than(&mut self, share: usize) {
        if share > 0 && self.context.clock.boottime() < self.no_gifts_until {
            return;
        }
        let excess = (self.held.len() - self.leaving.len()).saturating_sub(share);
        let staying = self.held.iter().filter(|(shard, _)| !self.leaving.contains(shard));
        let given: Vec<(ShardId, mpsc::Sender<ShardMessage>)> =
            staying.take(excess).map(|(shard, owned)| (*shard, owned.inbox.clone())).collect();
        if !given.is_empty() && share > 0 {
            info!("another server has joined; {} of {} shards are given to it", given.len(), self.held.len());
        }
        for (shard, inbox) in given {
            self.leaving.insert(shard);
            let _ = inbox.send(ShardMessage::Release).await;
        }
    }

    async fn lead(&mut self) -> Result<(), CoordError> {
        if let Some(held) = &mut self.leadership {
            // Confirms that it is still ours; a refusal means that another server leads.
            if held.is_unresolved() && held.resolve().await.is_err() || Self::lost(held, &self.context).await {
                self.leadership = None;
                self.context.leader.store(false, Ordering::Relaxed);
                self.context.peers.saw_leader(None);
            }
            return Ok(());
        }
        let seat = Seat::<()>::look(&*self.context.coordinator, keys::LEADER).await?;
        self.context.peers.saw_leader(seat.owner());
        let boottime = self.context.clock.boottime();
        let sole = self.context.coordinator.sole_user();
        if let Some(vacancy) = seat.vacancy(self.context.server, sole, &self.observer, boottime)
            && let Taking::Taken(held) =
                seat.take(self.context.coordinator.clone(), self.context.server, vacancy, ()).await?
        {
            info!(term = %held.term(), "this server leads");
            self.leadership = Some(held);
            self.context.leader.store(true, Ordering::Relaxed);
            self.context.peers.saw_leader(Some(self.context.server));
        }
        Ok(())
    }

    async fn lost(held: &Held<()>, context: &Context) -> bool {
        match context.coordinator.get(keys::LEADER).await {
            Ok(entry) => entry.is_some_and(|entry| entry.version > held.version()),
            Err(_) => false,
        }
    }

    async fn give_back(mut self) {
        for owned in self.held.values() {
            let _ = owned.inbox.send(ShardMessage::Release).await;
        }
        while !self.held.is_empty() {
            let Some((shard, _)) = self.left.recv().await else { break };
            self.held.remove(&shard);
        }
        self.give_back_leadership().await;
    }

    async fn give_back_leadership(&mut self) {
        if let Some(mut held) = self.leadership.take()
            && let Err(cause) = held.release().await
        {
            warn!("the leadership could not be given back: {}", crate::chain(&cause));
        }
        self.context.leader.store(false, Ordering::Relaxed);
    }
}
