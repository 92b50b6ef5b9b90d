//! What letters are signed with: one secret for the cluster, made when it is first needed and kept in the store's settings. Only
//! admins see it.

use belfry_core::Timestamp;
use belfry_store::{Actor, Store, StoreError};
use serde::{Deserialize, Serialize};

const SETTING: &str = "webhook_secrets";
/// So that it is recognised in a file or a log, and by secret scanners.
const PREFIX: &str = "bfw_";
const SECRET_BYTES: usize = 32;
/// How long letters are signed with the one before as well, so that receivers can be told of the new one in peace.
const OLD_IS_GOOD_FOR_S: i64 = 24 * 3600;

#[derive(Clone, Serialize, Deserialize)]
pub struct WebhookSecrets {
    current: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<Before>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Before {
    secret: String,
    until_second: i64,
}

impl WebhookSecrets {
    pub async fn of_cluster(store: &Store, now: Timestamp) -> Result<Self, StoreError> {
        if let Some(known) = store.setting(SETTING).await?.and_then(|text| serde_json::from_str(&text).ok()) {
            return Ok(known);
        }
        let made = Self { current: new_secret(), before: None };
        // Another server may have been faster.
        let held = store.setting_or(SETTING, &made.to_text(), now).await?;
        Ok(serde_json::from_str(&held).unwrap_or(made))
    }

    /// Makes a new one; the one before it is good for another day.
    pub async fn rotate(store: &Store, now: Timestamp, actor: &Actor) -> Result<Self, StoreError> {
        let before = Self::of_cluster(store, now).await?.current;
        let before = Some(Before { secret: before, until_second: now.as_second() + OLD_IS_GOOD_FOR_S });
        let rotated = Self { current: new_secret(), before };
        store.set_setting(SETTING, &rotated.to_text(), now, actor).await?;
        Ok(rotated)
    }

    pub fn current(&self) -> &str {
        &self.current
    }

    /// Until when the one before is good.
    pub fn old_good_until(&self) -> Option<Timestamp> {
        self.before.as_ref().and_then(|before| Timestamp::from_second(before.until_second).ok())
    }

    pub(super) fn good_at(&self, second: i64) -> Vec<&str> {
        let before = self.before.as_ref().filter(|before| second < before.until_second);
        std::iter::once(self.current.as_str()).chain(before.map(|before| before.secret.as_str())).collect()
    }

    fn to_text(&self) -> String {
        serde_json::to_string(self).expect("texts and a number")
    }
}

fn new_secret() -> String {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes.iter().fold(PREFIX.to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_before_is_good_until_its_time_is_over() {
        let before = Some(Before { secret: "old".into(), until_second: 10 });
        let secrets = WebhookSecrets { current: "new".into(), before };
        assert_eq!((secrets.good_at(9), secrets.good_at(10)), (vec!["new", "old"], vec!["new"]));
        assert!(new_secret().len() == 68 && new_secret() != new_secret());
    }
}
