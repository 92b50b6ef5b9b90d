//! What a run prints, and what is kept of it.

use belfry_testkit::{Client, Layout, until};
use serde_json::{Value, json};

use crate::start;

fn text_of(chunks: &[Value], stream: &str) -> String {
    let of_stream = chunks.iter().filter(|chunk| chunk["stream"] == stream);
    of_stream.filter_map(|chunk| chunk["text"].as_str()).collect()
}

pub async fn both_streams_are_kept_apart_and_in_order(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let command = "for n in 1 2 3; do echo out $n; sleep 0.1; echo err $n >&2; sleep 0.1; done";
    client.add("both", command, json!({})).await;
    let run = client.run_to_end("both").await;
    assert_eq!(client.output_text(&run.id).await, "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n");
    let chunks = client.chunks(&run.id).await;
    assert_eq!(text_of(&chunks, "stdout"), "out 1\nout 2\nout 3\n");
    assert_eq!(text_of(&chunks, "stderr"), "err 1\nerr 2\nerr 3\n");
    assert_eq!(run.output_bytes, 36);
}

pub async fn bytes_that_are_not_text_are_kept(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("bytes", r"printf 'a\377\000\376z'", json!({})).await;
    let run = client.run_to_end("bytes").await;
    assert_eq!(client.output(&run.id).await, b"a\xff\0\xfez");
}

pub async fn output_beyond_what_is_kept_is_cut_in_the_middle(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("much", "echo first; seq 1 2000000; echo last", json!({"output": {"keep": "64KiB"}})).await;
    let run = client.run_to_end("much").await;
    assert_eq!(run.state, "succeeded");
    let text = client.output_text(&run.id).await;
    assert!(text.starts_with("first\n1\n2\n") && text.ends_with("1999999\n2000000\nlast\n"), "{} bytes", text.len());
    assert!(text.len() < 70 * 1024, "{} bytes are kept", text.len());
    assert!(text.contains(&format!("… {} bytes left out …", run.output_dropped_bytes)), "the gap is marked");
    // 6 + 14,888,896 + 5: what `seq` prints, and the two words around it.
    assert_eq!(run.output_bytes, 14_888_907);
}

pub async fn output_that_names_a_failure_fails_the_run(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let rule = json!({"output": {"fail_on": "fatal|disk full"}});
    client.add("liar", "echo all is well; echo FATAL: no; echo 'a fatal thing' >&2; exit 0", rule.clone()).await;
    client.add("honest", "echo all is well", rule).await;
    let liar = client.run_to_end("liar").await;
    assert_eq!((liar.state.as_str(), liar.exit_code), ("failed", Some(0)), "{}", liar.why());
    assert!(liar.why().contains("fatal"), "{}", liar.why());
    assert_eq!(client.run_to_end("honest").await.state, "succeeded");
}

/// The run only goes on when the line was seen: no follower, no end.
pub async fn a_follower_gets_a_line_while_the_run_goes_on(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = belfry_testkit::Witness::new();
    let seen = witness.file("seen");
    let wait = format!("echo ready; until [ -e {} ]; do sleep 0.02; done; echo bye", seen.display());
    client.add("talker", &wait, json!({})).await;
    let run = client.run_now("talker").await;
    let mut follower = Follower::open(client, &run.id).await;
    follower.until("\"ready\\n\"").await;
    std::fs::write(&seen, "").expect("a folder of our own");
    let all = follower.until("event: end").await;
    assert_eq!(all.matches("\"ready\\n\"").count(), 1, "a chunk is sent once:\n{all}");
    assert!(all.contains("\"bye\\n\"") && all.contains("\"state\":\"succeeded\""), "{all}");
}

struct Follower {
    response: reqwest::Response,
    heard: String,
}

impl Follower {
    async fn open(client: &Client, run: &str) -> Self {
        let response =
            client.request(reqwest::Method::GET, &format!("/runs/{run}/stream")).send().await.expect("a stream");
        assert!(response.status().is_success(), "{}", response.status());
        Self { response, heard: String::new() }
    }

    async fn until(&mut self, wanted: &str) -> String {
        until(&format!("the stream says {wanted}"), async || {
            while !self.heard.contains(wanted) {
                let next = tokio::time::timeout(std::time::Duration::from_millis(200), self.response.chunk()).await;
                let chunk = next.ok()?.expect("the stream goes on")?;
                self.heard.push_str(&String::from_utf8_lossy(&chunk));
            }
            // The rest of the event that it is in.
            Some(self.heard.clone())
        })
        .await
    }
}
