//! A complete list in pages that are all of one revision, so that it shows the keyspace as one commit left it.

use etcd_client::{GetOptions, GetResponse, KeyValue};

use super::end_of;
use super::failure::Failure;
use super::members::{Members, kv};
use crate::CoordError;

/// Until the size of the entries is known.
const FIRST_PAGE: usize = 32;
const PAGE_MAX: usize = 4_000;
const PAGE_BYTES_AIM: usize = 1024 * 1024;
/// Compactions are minutes apart, seconds in the worst of herds: meeting two of them is no accident.
const STARTS_MAX: usize = 3;

pub(super) async fn all_with(members: &Members, prefix: &str) -> Result<Vec<KeyValue>, CoordError> {
    let mut starts = 1;
    loop {
        match pages(members, prefix).await {
            Err(Failure::NoSuchRevision(_)) if starts < STARTS_MAX => starts += 1,
            listed => return listed.map_err(Failure::of_read),
        }
    }
}

async fn pages(members: &Members, prefix: &str) -> Result<Vec<KeyValue>, Failure> {
    let end = end_of(prefix);
    let (mut from, mut revision, mut limit) = (prefix.as_bytes().to_vec(), 0, FIRST_PAGE);
    let mut all: Vec<KeyValue> = vec![];
    loop {
        let mut found = match page(members, &from, &end, revision, limit).await {
            Err(Failure::AnswerTooLarge(_)) if limit > 1 => {
                limit /= 2;
                continue;
            }
            found => found?,
        };
        if revision == 0 {
            revision = members.saw(found.header()).unwrap_or_default();
        }
        let more = found.more();
        let kvs = found.take_kvs();
        limit = next_limit(&kvs);
        let last = kvs.last().map(|kv| kv.key().to_vec());
        all.extend(kvs);
        match last {
            Some(last) if more => {
                from = last;
                from.push(0);
            }
            _ => return Ok(all),
        }
    }
}

async fn page(members: &Members, from: &[u8], end: &[u8], revision: i64, limit: usize) -> Result<GetResponse, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let options = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision);
    let asked = members.ask(|client| {
        let (mut kv, from, options) = (kv(client), from.to_vec(), options.clone());
        async move { kv.get(from, Some(options)).await }
    });
    asked.await
}

/// So many entries like these as make a page.
fn next_limit(kvs: &[KeyValue]) -> usize {
    let bytes: usize = kvs.iter().map(|kv| kv.key().len() + kv.value().len()).sum();
    let each = (bytes / kvs.len().max(1)).max(1);
    (PAGE_BYTES_AIM / each).clamp(1, PAGE_MAX)
}
