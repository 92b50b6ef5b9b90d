//! Reading what a run printed.

use axum::body::Body;
use axum::http::Request;
use belfry_core::Timestamp;
use belfry_store::{OutputChunk, Stream};
use serde_json::{Value, json};

use crate::harness::Api;

#[tokio::test]
async fn output_is_text_with_its_gap_marked_or_chunks_with_their_bytes() {
    let api = Api::start().await;
    let run = api.ended_run("default", "job", 0).await;
    let at = Timestamp::from_millisecond(1_790_000_000_123).unwrap();
    let chunk = |seq, stream, bytes: &[u8], dropped_bytes| OutputChunk {
        run,
        attempt: 1,
        seq,
        stream,
        offset: 0,
        at,
        bytes: bytes.to_vec(),
        dropped_bytes,
    };
    let chunks = [
        chunk(0, Stream::Stdout, b"begin\n", 0),
        chunk(1, Stream::Stderr, &[0xff, 0xfe, b'\n'], 0),
        chunk(2, Stream::Stdout, b"end\n", 1234),
    ];
    api.store.append_output(&chunks).await.unwrap();
    let path = format!("/api/v1/runs/{run}/output");
    let text = api.admin("GET", &path, Value::Null).await.expect(200);
    assert_eq!(text.headers["content-type"], "text/plain; charset=utf-8");
    let expected =
        [b"begin\n".as_slice(), &[0xff, 0xfe, b'\n'], "\n… 1234 bytes left out …\n".as_bytes(), b"end\n"].concat();
    assert_eq!(text.body, expected);
    assert_eq!(
        api.admin("GET", &format!("{path}?from=2"), Value::Null).await.expect(200).body,
        "\n… 1234 bytes left out …\nend\n".as_bytes()
    );
    let request = Request::get(&path)
        .header("authorization", format!("Bearer {}", api.token("viewer")))
        .header("accept", "application/json");
    let answer = api.send(request.body(Body::empty()).unwrap()).await.expect(200).json();
    assert_eq!((answer["attempt"].as_u64(), answer["next"].clone()), (Some(1), Value::Null));
    let seen: Vec<Value> = answer["chunks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| json!([c["seq"], c["stream"], c["text"], c["base64"], c["dropped_bytes"]]))
        .collect();
    assert_eq!(
        seen,
        [
            json!([0, "stdout", "begin\n", null, 0]),
            json!([1, "stderr", null, "//4K", 0]),
            json!([2, "stdout", "end\n", null, 1234]),
        ]
    );
    assert_eq!(answer["chunks"][0]["at_ms"], 1_790_000_000_123_i64);
    api.admin("GET", &format!("{path}?attempt=2"), Value::Null).await.expect(400);
    api.call("other", "GET", &path, Value::Null).await.expect(404);
}
