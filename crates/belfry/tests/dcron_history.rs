//! Wrapped commands on the coordinator of a server: they know nothing of it, and it has them in its history. What they print is there too,
//! if they are told where the server is.

use std::process::Output;
use std::time::Duration;

use belfry_testkit::servers::Postgres;
use belfry_testkit::{Client, Daemon, Run, until};
use tokio::time::Instant;

const BELFRY: &str = env!("CARGO_BIN_EXE_belfry");
const STOP_PATIENCE: Duration = Duration::from_secs(40);

struct Place {
    folder: tempfile::TempDir,
    database: String,
}

impl Place {
    async fn server(&self) -> (Daemon, Client) {
        let data = self.folder.path().join("data");
        // One that is left from the last start is not an answer.
        let _absent = std::fs::remove_file(data.join("address"));
        let args = ["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"].map(str::to_owned);
        let env = [("BELFRY_STORE", self.database.clone()), ("BELFRY_DATA", data.display().to_string())];
        let env = env.map(|(name, value)| (name.to_owned(), value));
        let log = self.folder.path().join("server.err");
        let mut daemon = Daemon::start("server", BELFRY.as_ref(), &args, &env, &log);
        let address = until("the address is written", async || {
            if let Some(status) = daemon.ended() {
                panic!("it ended by itself with {status}:\n{}", daemon.stderr());
            }
            std::fs::read_to_string(data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(data.join("cli-token")).expect("the token for the command line");
        (daemon, Client::new(address.trim(), token.trim()))
    }

    /// As a line of a crontab; the exit code.
    fn wrap(&self, name: &str, command: &str) -> Option<i32> {
        self.wrap_with(name, &[], &[], command).status.code()
    }

    fn wrap_with(&self, name: &str, parameters: &[&str], env: &[(&str, &str)], command: &str) -> Output {
        let folder = |name: &str| self.folder.path().join(name).display().to_string();
        assert_cmd::Command::new(BELFRY)
            .arg("wrap")
            .arg(format!("DCRON_NAME={name}.%F_%H%M"))
            .arg(format!("DCRON_COORD={}", self.database))
            .arg(format!("DCRON_LIBDIR={}", folder("lib")))
            .arg(format!("DCRON_LOGDIR={}", folder("log")))
            .args(parameters)
            .args(["DCRON_ID=db1", "--", "sh", "-c", command])
            .current_dir(self.folder.path())
            .envs(env.iter().copied())
            .timeout(Duration::from_secs(60))
            .output()
            .unwrap()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(file)).unwrap().trim().to_owned()
    }

    /// All that was captured into files, of both streams.
    fn captured(&self, name: &str) -> String {
        let files = std::fs::read_dir(self.folder.path().join("log")).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.filter(|path| path.to_string_lossy().contains(&format!("/{name}."))).collect();
        files.sort();
        files.iter().rev().map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }

    fn cli(&self, args: &[&str]) -> Output {
        let data = self.folder.path().join("data");
        assert_cmd::Command::new(BELFRY).args(args).env("BELFRY_DATA", data).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn runs(client: &Client, filter: &str) -> Vec<Run> {
    let page = client.get(&format!("/runs?{filter}")).await;
    serde_json::from_value(page["items"].clone()).unwrap()
}

/// For hosts that wrap commands, with this role among their runs and none elsewhere.
async fn token_of(client: &Client, role: &str) -> String {
    let wanted = serde_json::json!({"label": "dcron", "service": "hosts", "grants": {"dcron": role}});
    client.post("/tokens", wanted).await["secret"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapped_command_is_one_run_in_the_history_of_servers() {
    let postgres = Postgres::start();
    let folder = tempfile::Builder::new().prefix("belfry-dcron-").tempdir().unwrap();
    let place = Place { folder, database: postgres.fresh_database() };
    let (mut server, client) = place.server().await;
    assert_eq!(place.wrap("backup", "exit 3"), Some(3));
    let run = until("the run is in the history", async || runs(&client, "").await.pop()).await;
    assert_eq!((&*run.job_name, &*run.state, run.exit_code), ("backup", "failed", Some(3)));
    assert_eq!((run.node_name.as_deref(), run.attempt, run.revision), (Some("db1"), 1, 0));
    assert!(run.started_at.is_some() && run.ended_at >= run.started_at, "{run:?}");

    for filter in ["namespace=dcron", "job=dcron/backup", "state=failed", "job=dcron/backup&namespace=dcron"] {
        assert_eq!(runs(&client, filter).await.len(), 1, "{filter}");
    }
    for filter in ["namespace=default", "job=backup", "job=dcron/restore"] {
        assert!(runs(&client, filter).await.is_empty(), "{filter}");
    }
    let shown = client.get(&format!("/runs/{}", run.id)).await;
    assert_eq!((shown["namespace"].as_str(), shown["command"].as_str()), (Some("dcron"), None));
    assert_eq!(shown["attempts"].as_array().map(Vec::len), Some(1));
    let listed = text(&place.cli(&["run", "ls"]).stdout);
    assert!(listed.contains("dcron/backup") && listed.contains("db1"), "{listed}");
    // There is nothing that could be fired or edited.
    for (method, path) in [
        (reqwest::Method::GET, "/jobs/dcron/backup".to_owned()),
        (reqwest::Method::POST, "/jobs/dcron/backup/run".to_owned()),
        (reqwest::Method::POST, format!("/runs/{}/rerun", run.id)),
    ] {
        let answer = client.call(method, &path, None).await;
        assert_eq!(answer.status, reqwest::StatusCode::NOT_FOUND, "{path}: {:?}", answer.body);
    }

    // The next leader finds the record again, and copies what is new.
    server.stop(STOP_PATIENCE).await;
    let (mut server, client) = place.server().await;
    assert_eq!(place.wrap("restore", "true"), Some(0));
    until("the other run is in the history", async || runs(&client, "job=dcron/restore").await.pop()).await;
    let all: Vec<String> = runs(&client, "").await.into_iter().map(|run| run.id).collect();
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all.contains(&run.id));
    server.stop(STOP_PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_wrapped_command_prints_is_in_the_history_when_its_wrapper_has_ended() {
    let postgres = Postgres::start();
    let folder = tempfile::Builder::new().prefix("belfry-dcron-").tempdir().unwrap();
    let place = Place { folder, database: postgres.fresh_database() };
    let (mut server, client) = place.server().await;
    let (url, token) = (place.read("data/address"), token_of(&client, "operator").await);
    let server_named = [("BELFRY_URL", &*url), ("BELFRY_TOKEN", &*token)];
    let only = async |name: &str| {
        let mut found = runs(&client, &format!("job=dcron/{name}")).await;
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    };

    // The leader need not have come by.
    let command = "echo $BELFRY_FENCE > fence; echo first; sleep 0.2; echo second >&2; sleep 0.2; echo \"third $BELFRY_TOKEN\"; exit 3";
    let ended = place.wrap_with("backup", &[], &server_named, command);
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(3), String::new()));
    let run = only("backup").await;
    let fence = place.read("fence");
    assert_eq!((run.fence.to_string(), &*run.trigger), (fence.clone(), "wrapped"));
    let instance = client.get(&format!("/runs/{}", run.id)).await["instance"].as_str().unwrap().to_owned();
    assert_eq!(instance.len(), "2026-11-18_0230".len(), "{instance}");
    let shown = text(&place.cli(&["run", "show", &run.id]).stdout);
    assert!(shown.contains(&format!("wrapped, instance {instance}")) && shown.contains(&fence), "{shown}");
    let logs = place.cli(&["run", "logs", &run.id]);
    assert_eq!(text(&logs.stdout), "first\nthird \n", "and the token is not for the command");
    assert!(text(&logs.stderr).starts_with("second\n"), "{}", text(&logs.stderr));
    let output = place.cli(&["--json", "run", "logs", &run.id]).stdout;
    let output: serde_json::Value = serde_json::from_slice(&output).unwrap();
    let chunks = output["chunks"].as_array().unwrap();
    let order: Vec<_> = chunks.iter().map(|chunk| chunk["text"].as_str().unwrap()).collect();
    assert_eq!(order, ["first\n", "second\n", "third \n"]);
    assert!(chunks.is_sorted_by_key(|chunk| chunk["at_ms"].as_i64()), "{chunks:?}");
    assert_eq!(place.captured("backup"), "first\nthird \nsecond\n");

    // Each attempt has its own.
    let abexit = ["DCRON_RETRYON=ABEXIT"];
    let ended = place.wrap_with("again", &abexit, &server_named, "echo attempt $BELFRY_ATTEMPT; exit 1");
    assert_eq!(ended.status.code(), Some(1));
    let run = only("again").await;
    for attempt in ["1", "2"] {
        let logs = place.cli(&["run", "logs", &run.id, "--attempt", attempt]);
        assert_eq!(text(&logs.stdout), format!("attempt {attempt}\n"));
    }

    // Of much the middle is left out.
    let ended = place.wrap_with("much", &[], &server_named, "echo begin; yes | head -c 3000000; echo end");
    assert_eq!((ended.status.code(), text(&ended.stderr)), (Some(0), String::new()));
    let run = only("much").await;
    let logs = place.cli(&["run", "logs", &run.id]);
    assert!(logs.stdout.starts_with(b"begin\n") && logs.stdout.ends_with(b"end\n"));
    assert_eq!(logs.stdout.len(), 1 << 20);
    assert!(text(&logs.stderr).contains("bytes left out"), "{}", text(&logs.stderr));
    let shown = client.get(&format!("/runs/{}", run.id)).await;
    assert_eq!(shown["output_bytes"].as_u64(), Some(3_000_010));

    // Without a server that takes it nothing else changes.
    let viewer = token_of(&client, "viewer").await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", nobody.local_addr().unwrap());
    for (name, url, token, why) in [
        ("viewer", &*url, &*viewer, "needs the role operator"),
        ("stranger", &*url, "bft_wrong", "wants a login"),
        ("silent", &*silent, &*token, "no answer in time"),
        ("away", "http://127.0.0.1:1", &*token, "does not answer"),
    ] {
        let began = Instant::now();
        let ended = place.wrap_with(name, &[], &[("BELFRY_URL", url), ("BELFRY_TOKEN", token)], "echo hello; exit 5");
        assert_eq!(ended.status.code(), Some(5), "{name}");
        let said = text(&ended.stderr);
        assert!(
            said.contains(why) && said.contains("not in the history") && said.lines().count() == 1,
            "{name}: {said}"
        );
        assert!(began.elapsed() < Duration::from_secs(25), "{name}: {:?}", began.elapsed());
        assert_eq!(place.captured(name), "hello\n");
        let run =
            until("the leader has copied it", async || runs(&client, &format!("job=dcron/{name}")).await.pop()).await;
        assert_eq!((run.exit_code, &*text(&place.cli(&["run", "logs", &run.id]).stdout)), (Some(5), ""));
    }
    server.stop(STOP_PATIENCE).await;
}
