//! The leader's deliveries to webhooks: what the store says is due goes out, signed, and the store is told what came of it. Receivers
//! do not wait for each other: each has a lane of its own, and one that does not answer gets one letter at a time.
//!
//! At least once: what was posted when this process was killed is posted again, by whoever leads then, with the same id.

mod secret;
mod signature;

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belfry_core::job::{Webhook, WebhookFormat};
use belfry_core::webhook::Delivery;
use belfry_store::{StoreError, Tried};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use crate::context::Context;
pub use secret::WebhookSecrets;
pub use signature::signature;

/// How long a receiver has for its answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// When a lane has ended there may be more for it at once; looks still have this much time between them.
const LOOKS_APART: Duration = Duration::from_millis(20);
const LANES_MAX: usize = 128;
const LETTERS_PER_LANE_MAX: usize = 64;
/// Of one receiver, at the same time.
const IN_FLIGHT_PER_RECEIVER_MAX: usize = 4;
const ERROR_CHARS_MAX: usize = 500;
/// What was posted is written down within this, or posted again.
const NOTE_TRIES_MAX: u32 = 60;

/// A request as it goes out.
#[derive(Clone, Debug)]
pub struct Letter {
    pub url: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

/// Carries letters. Handed in by the binary, which alone names a client; without one nothing is delivered.
pub trait Post: Debug + Send + Sync + 'static {
    /// The status that the receiver answered with, or why there is none. The time limit is the caller's.
    fn post(&self, letter: Letter) -> BoxFuture<'static, Result<u16, String>>;
}

/// Never ends.
pub async fn deliver(context: Arc<Context>, post: Arc<dyn Post>) {
    let office = Arc::new(Office { context, post, lanes: Mutex::default(), lane_ended: Notify::new() });
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = office.lane_ended.notified() => tokio::time::sleep(LOOKS_APART).await,
        }
        if !office.context.leader.load(Ordering::Relaxed) {
            office.lock().silent.clear();
            continue;
        }
        if let Err(cause) = office.look().await {
            office.store_failed(&cause);
        }
    }
}

struct Office {
    context: Arc<Context>,
    post: Arc<dyn Post>,
    lanes: Mutex<Lanes>,
    lane_ended: Notify,
}

#[derive(Default)]
struct Lanes {
    /// Receivers that are being told something.
    open: HashSet<String>,
    /// Receivers that did not answer the last letter.
    silent: HashSet<String>,
}

impl Office {
    async fn look(self: &Arc<Self>) -> Result<(), StoreError> {
        let busy = self.lock().open.clone();
        let now = self.context.now();
        let is_busy = |receiver: &str| busy.contains(receiver);
        let due = self.context.store.due_deliveries(now, LETTERS_PER_LANE_MAX, is_busy).await?;
        if due.is_empty() {
            return Ok(());
        }
        let secrets = WebhookSecrets::of_cluster(&self.context.store, now).await?;
        let secrets = Arc::new(secrets);
        let mut by_receiver: HashMap<String, Vec<Delivery>> = HashMap::new();
        for delivery in due {
            by_receiver.entry(delivery.receiver.clone()).or_default().push(delivery);
        }
        for (receiver, mut letters) in by_receiver {
            {
                let mut lanes = self.lock();
                if lanes.open.len() >= LANES_MAX {
                    break;
                }
                if lanes.silent.contains(&receiver) {
                    letters.truncate(1);
                }
                lanes.open.insert(receiver.clone());
            }
            let (office, secrets) = (self.clone(), secrets.clone());
            self.context.tasks.spawn("deliveries to a webhook", async move {
                office.lane(&receiver, letters, &secrets).await;
                office.lock().open.remove(&receiver);
                office.lane_ended.notify_one();
            });
        }
        Ok(())
    }

    /// Tells one receiver, until it falls silent; what is left is due still.
    async fn lane(&self, receiver: &str, letters: Vec<Delivery>, secrets: &WebhookSecrets) {
        let stop = AtomicBool::new(false);
        let stop = &stop;
        let each = |delivery: Delivery| async move {
            if stop.load(Ordering::Relaxed) || !self.context.leader.load(Ordering::Relaxed) {
                return;
            }
            let tried = match self.try_once(&delivery, secrets).await {
                Ok(tried) => tried,
                Err(cause) => {
                    stop.store(true, Ordering::Relaxed);
                    return self.store_failed(&cause);
                }
            };
            let answered = !matches!(tried, Tried::InVain { status: None, next_try_at: Some(_), .. });
            if answered {
                self.lock().silent.remove(receiver);
            } else {
                stop.store(true, Ordering::Relaxed);
                self.lock().silent.insert(receiver.to_owned());
            }
            self.note(&delivery, tried).await;
        };
        futures_util::stream::iter(letters).for_each_concurrent(IN_FLIGHT_PER_RECEIVER_MAX, each).await;
    }

    /// Where it goes is what the job says now, so that a wrong address can be corrected while it is tried.
    async fn try_once(&self, delivery: &Delivery, secrets: &WebhookSecrets) -> Result<Tried, StoreError> {
        let webhook = match self.context.store.webhook_of(delivery.job).await {
            Ok(Some(webhook)) => webhook,
            Ok(None) => {
                let error = "the job has no webhook any more".to_owned();
                return Ok(Tried::InVain { status: None, error, next_try_at: None });
            }
            Err(cause) if cause.is_transient() => return Err(cause),
            Err(cause) => return Ok(self.in_vain(delivery, None, crate::chain(&cause))),
        };
        let letter = letter(delivery, &webhook, secrets, self.context.now().as_second());
        let answer = tokio::time::timeout(ANSWER_WITHIN, self.post.post(letter)).await;
        Ok(match answer {
            Ok(Ok(status @ 200..=299)) => Tried::Delivered { status },
            Ok(Ok(status @ 300..=399)) => {
                let error = format!("the receiver answered {status}; redirects are not followed, correct webhook.url");
                self.in_vain(delivery, Some(status), error)
            }
            Ok(Ok(status)) => self.in_vain(delivery, Some(status), format!("the receiver answered {status}")),
            Ok(Err(why)) => self.in_vain(delivery, None, why),
            Err(_) => self.in_vain(delivery, None, format!("no answer within {}s", ANSWER_WITHIN.as_secs())),
        })
    }

    fn in_vain(&self, delivery: &Delivery, status: Option<u16>, error: String) -> Tried {
        let error = error.chars().take(ERROR_CHARS_MAX).collect();
        Tried::InVain { status, error, next_try_at: delivery.next_try(self.context.now()) }
    }

    async fn note(&self, delivery: &Delivery, tried: Tried) {
        let outcome = match &tried {
            Tried::Delivered { .. } => "delivered",
            Tried::InVain { next_try_at: Some(_), .. } => "in_vain",
            Tried::InVain { error, next_try_at: None, .. } => {
                tracing::warn!(delivery = %delivery.id, job = %delivery.job_name, "webhook given up: {error}");
                "given_up"
            }
        };
        metrics::counter!("belfry_webhook_tries_total", "outcome" => outcome).increment(1);
        let at = self.context.now();
        for _ in 0..NOTE_TRIES_MAX {
            match self.context.store.tried(delivery.id, at, &tried).await {
                Ok(()) => return,
                Err(cause) => self.store_failed(&cause),
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn store_failed(&self, cause: &StoreError) {
        if cause.is_transient() {
            self.context.store_health.away(self.context.now(), crate::chain(cause));
        } else {
            tracing::error!("webhooks cannot be told: {}", crate::chain(cause));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `second` is when it is sent, so that a receiver can refuse what somebody recorded and sends again.
fn letter(delivery: &Delivery, webhook: &Webhook, secrets: &WebhookSecrets, second: i64) -> Letter {
    let body = delivery.body(webhook.format);
    let content_type = match webhook.format {
        WebhookFormat::Json => "application/json",
        WebhookFormat::Form => "application/x-www-form-urlencoded",
    };
    let headers = vec![
        ("content-type", content_type.to_owned()),
        ("belfry-delivery", delivery.id.to_string()),
        ("belfry-event", format!("run.{}", delivery.id.news.as_str())),
        ("belfry-signature", signature(secrets.good_at(second), second, &body)),
    ];
    Letter { url: webhook.url.clone(), headers, body }
}
