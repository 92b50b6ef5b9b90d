//! What runs write for the next run of their job: on its way to a server, and what is said when it cannot be kept.

use std::path::Path;
use std::time::Duration;

use belfry_core::state::{KEYS_MAX, VALUE_BYTES_MAX};
use belfry_exec::current_user;
use belfry_proto::session::{Dispatch, OutputChunk, SaveState, StateSaved, from_agent, to_agent};
use serde_json::json;

use crate::server::{Server, key, shell, start, stdout, with_document};

impl Server {
    async fn until_saves(&mut self, run: u32) -> SaveState {
        self.until(|message| match message {
            from_agent::Message::SaveState(save) if save.key == Some(key(run)) => Some(save),
            _ => None,
        })
        .await
    }

    async fn saved(&self, run: u32, sequence: u64, refused: &[&str]) {
        let refused = refused.iter().map(|why| (*why).to_owned()).collect();
        self.send(to_agent::Message::StateSaved(StateSaved { key: Some(key(run)), sequence, refused })).await;
    }
}

fn stderr(chunks: &[OutputChunk]) -> String {
    let bytes: Vec<u8> =
        chunks.iter().filter(|chunk| chunk.stream == 2).flat_map(|chunk| chunk.bytes.to_vec()).collect();
    String::from_utf8(bytes).expect("text")
}

fn changes(save: &SaveState) -> Vec<(&str, &str)> {
    let mut changes: Vec<_> = save.changes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    changes.sort_unstable();
    changes
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_writes_is_told_until_it_is_acknowledged_and_the_rest_goes_with_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let go = folder.path().join("go");
    let command = format!(
        "echo A=x=y= > $BELFRY_STATE; until [ -e {} ]; do sleep 0.05; done; echo \"$BELFRY_STATE_SEEN\"; \
         echo B=2 > $BELFRY_STATE; echo SEEN= > $BELFRY_STATE; kill -9 $$",
        go.display()
    );
    let state = [("SEEN".to_owned(), "by the next".to_owned())].into();
    server.dispatch(Dispatch { state, ..shell(1, &command) }).await;
    let first = server.until_saves(1).await;
    assert_eq!((first.sequence, changes(&first)), (1, vec![("A", "x=y=")]));
    let again = server.until_saves(1).await;
    assert_eq!(again, first, "nobody has acknowledged it");
    server.saved(1, 1, &[]).await;
    server.until_heard().await;
    std::fs::write(&go, "").unwrap();
    let (chunks, ended) = server.result(1).await;
    assert_eq!(stdout(&chunks), "by the next\n");
    assert_eq!(ended.signal, Some(9));
    let saves = ended.saves.unwrap();
    assert!(saves.sequence > 1, "{saves:?}");
    assert_eq!(changes(&saves), [("B", "2"), ("SEEN", "")], "what was acknowledged does not come again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_in_time_though_nobody_acknowledges_what_it_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    server.dispatch(shell(1, "for n in 1 2 3; do echo A=$n > $BELFRY_STATE; sleep 0.2; done")).await;
    let ended = server.until_ended(1).await;
    assert_eq!(ended.outcome, "succeeded");
    assert_eq!(changes(&ended.saves.unwrap()), [("A", "3")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_said_in_the_runs_output() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let command = format!(
        "exec 3> $BELFRY_STATE; echo GOOD=1 >&3; echo lower=1 >&3; echo nothing >&3; \
         echo LONG=$(head -c {} /dev/zero | tr '\\0' x) >&3; head -c 100000 /dev/zero | tr '\\0' y >&3; echo >&3; \
         for n in $(seq 1 {KEYS_MAX}); do echo K$n=$n >&3; done; printf END=cut >&3",
        VALUE_BYTES_MAX + 1
    );
    server.dispatch(shell(1, &command)).await;
    let mut said = Vec::new();
    let ended = server
        .until(|message| match message {
            from_agent::Message::Output(chunk) => {
                said.push(chunk);
                None
            }
            from_agent::Message::Ended(ended) => Some(ended),
            _ => None,
        })
        .await;
    let said = stderr(&said);
    for words in [
        "belfry: BELFRY_STATE: line 2 was not saved: `lower`: a key has 1 to 64 capital letters",
        "line 3 was not saved: `nothing` has no `=`; write KEY=VALUE",
        "line 4 was not saved: `LONG`: its value has 4097 bytes; at most 4096 are kept",
        "line 5 was not saved: it is longer than 4161 bytes",
        "line 37 was not saved: `K32`: at most 32 keys are kept",
        "line 38 has no end (a newline), and was not saved",
    ] {
        assert!(said.contains(words), "{words} in {said}");
    }
    let saves = ended.saves.unwrap();
    assert_eq!(saves.changes.len(), KEYS_MAX);
    assert!(!saves.changes.contains_key("K32") && saves.changes["GOOD"] == "1");
    assert!(ended.output_bytes >= said.len() as u64, "it counts as output");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_refuses_is_said_in_the_runs_output() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let go = folder.path().join("go");
    let command = format!("echo A=1 > $BELFRY_STATE; until [ -e {} ]; do sleep 0.05; done", go.display());
    server.dispatch(shell(1, &command)).await;
    let save = server.until_saves(1).await;
    server.saved(1, save.sequence, &["stale: its fence is 77"]).await;
    server
        .until(|message| match message {
            from_agent::Message::Output(chunk) => stderr(&[chunk]).contains("not saved: stale").then_some(()),
            _ => None,
        })
        .await;
    std::fs::write(&go, "").unwrap();
    assert_eq!(server.until_ended(1).await.saves, None, "it is not told again");
}

/// More than a FIFO holds, and more mistakes than are listed.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_waits_until_what_it_wrote_is_saved_and_a_flood_of_mistakes_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let done = folder.path().join("done");
    let command = format!("seq 1 300000 | sed 's/.*/N=&\\nbad/' > $BELFRY_STATE; touch {}; sleep 1", done.display());
    server.dispatch(shell(1, &command)).await;
    let mut said = Vec::new();
    let (mut sequence, mut last) = (0, String::new());
    let ended = loop {
        match server.next().await {
            from_agent::Message::SaveState(save) => {
                if sequence == 0 {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    assert!(!done.exists(), "it is read faster than it is saved");
                }
                sequence = save.sequence;
                last = save.changes["N"].clone();
                server.saved(1, sequence, &[]).await;
            }
            from_agent::Message::Output(chunk) => said.push(chunk),
            from_agent::Message::Ended(ended) => break ended,
            _ => {}
        }
    };
    assert_eq!(ended.saves.map_or(last, |saves| saves.changes["N"].clone()), "300000", "the last one counts");
    let said = stderr(&said);
    assert_eq!(said.lines().count(), 21, "{said}");
    assert!(said.ends_with("more mistakes are not listed\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_runs_user_can_write_and_nothing_is_left_of_the_fifo() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let user = if current_user().uid == 0 { "backup".to_owned() } else { current_user().user };
    let command = "stat -c '%n %U %a %F' $BELFRY_STATE; echo A=1 > $BELFRY_STATE";
    let document = json!({"name": "job", "action": {"shell": {"command": command}}, "as": {"user": user}});
    server.dispatch(with_document(1, &document)).await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!(ended.outcome, "succeeded", "{} {}", ended.reason, stderr(&chunks));
    assert_eq!(changes(&ended.saves.unwrap()), [("A", "1")]);
    let said = stdout(&chunks);
    let (path, rights) = said.trim().split_once(' ').unwrap();
    assert_eq!(rights, format!("{user} 600 fifo"));
    assert!(!Path::new(path).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_nodes_fire_by_themselves_is_told_that_nothing_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let command = "echo A=1 > $BELFRY_STATE; echo B=1 > $BELFRY_STATE";
    let document = json!({"name": "job", "action": {"shell": {"command": command}}, "run_on": "each"});
    server.dispatch(with_document(1, &document)).await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.outcome.as_str(), ended.saves), ("succeeded", None));
    let said = stderr(&chunks);
    assert!(said.lines().count() == 1 && said.contains("state is saved for jobs with `run_on: one`"), "{said}");
}

/// Whoever follows goes by the place of each piece in all that was printed, and knows what lies behind.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_said_to_followers_also_beyond_the_output_that_is_kept() {
    const HEAD_BYTES: u64 = 32 * 1024;
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    // Each piece is seen before the next is printed.
    let [head, more] = ["head", "more"].map(|name| folder.path().join(name));
    let command = format!(
        "head -c {HEAD_BYTES} /dev/zero | tr '\\0' x; until [ -e {} ]; do sleep 0.05; done; \
         head -c 8192 /dev/zero | tr '\\0' y; until [ -e {} ]; do sleep 0.05; done; \
         echo lower=1 > $BELFRY_STATE; sleep 0.2; echo end",
        head.display(),
        more.display()
    );
    let action = json!({"shell": {"command": command}});
    server.dispatch(with_document(1, &json!({"name": "job", "action": action, "output": {"keep": "64KiB"}}))).await;
    let (mut until, mut seen, mut kept) = (0_u64, Vec::new(), Vec::new());
    server
        .until(|message| match message {
            from_agent::Message::Output(chunk) => {
                let gap = if chunk.bytes.is_empty() { chunk.dropped } else { 0 };
                let known = until.saturating_sub(chunk.offset).min(chunk.bytes.len() as u64);
                seen.extend_from_slice(&chunk.bytes[known as usize..]);
                until = until.max(chunk.offset + gap + chunk.bytes.len() as u64);
                if until >= HEAD_BYTES {
                    std::fs::write(&head, "").unwrap();
                }
                if until >= HEAD_BYTES + 8192 {
                    std::fs::write(&more, "").unwrap();
                }
                if !chunk.live_only {
                    kept.push(chunk);
                }
                None
            }
            from_agent::Message::Ended(ended) => Some(ended),
            _ => None,
        })
        .await;
    let seen = String::from_utf8(seen).unwrap();
    let note = "belfry: BELFRY_STATE: line 1 was not saved: `lower`: a key has 1 to 64 capital letters";
    let (before, after) = seen.split_once(note).unwrap_or_else(|| panic!("{} bytes without the note", seen.len()));
    assert_eq!(before, "x".repeat(HEAD_BYTES as usize) + &"y".repeat(8192));
    assert!(!after.contains("belfry:") && after.ends_with("\nend\n"), "{after}");
    assert_eq!(stderr(&kept).matches(note).count(), 1, "it is kept as before");
}
