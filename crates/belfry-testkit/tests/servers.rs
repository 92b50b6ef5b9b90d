//! The kit's own promises: servers answer, keep data and ports over a kill, and leave nothing behind; the proxy loses exactly
//! one answer. Each test needs the server's Debian package.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use belfry_testkit::{Etcd, EtcdOptions, MariaDb, Postgres, Proxy, ZooKeeper, until};

fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

fn answers(address: &str) -> bool {
    TcpStream::connect(address).is_ok()
}

#[test]
fn etcd_of_one_member_keeps_its_port_and_leaves_nothing() {
    let mut etcd = Etcd::start(1);
    let endpoints = etcd.endpoints();
    let first = etcd.pid(0);
    etcd.kill(0);
    assert!(is_gone(first));
    assert!(!answers(&endpoints[0]));
    etcd.restart(0);
    assert_eq!(etcd.endpoints(), endpoints);
    assert!(answers(&endpoints[0]));
    let second = etcd.pid(0);
    etcd.suspend(0);
    drop(etcd);
    assert!(is_gone(second));
    assert!(!answers(&endpoints[0]));
}

#[test]
fn etcd_of_three_members_goes_on_without_one() {
    let mut etcd = Etcd::start(3);
    assert_eq!(etcd.endpoints().len(), 3);
    etcd.kill(1);
    etcd.restart(1);
    // Without a majority a member answers, but is not healthy.
    etcd.kill(0);
    etcd.kill(1);
    etcd.restart(0);
    let pids = [etcd.pid(0), etcd.pid(2)];
    drop(etcd);
    assert!(pids.into_iter().all(is_gone));
}

#[test]
fn etcd_with_tls_and_user_starts() {
    let user = Some(("belfry".to_owned(), "secret".to_owned()));
    let etcd = Etcd::start_with(1, EtcdOptions { quota_bytes: Some(16 << 20), tls: true, user });
    assert!(etcd.url().starts_with("etcd://belfry:secret@127.0.0.1:"), "{}", etcd.url());
    assert!(etcd.ca_file().is_file());
}

#[test]
fn zookeeper_of_one_member_keeps_its_port_and_leaves_nothing() {
    let mut zookeeper = ZooKeeper::start(1);
    let endpoints = zookeeper.endpoints();
    zookeeper.kill(0);
    assert!(!answers(&endpoints[0]));
    zookeeper.restart(0);
    assert_eq!(zookeeper.endpoints(), endpoints);
    zookeeper.suspend(0);
    zookeeper.resume(0);
    let pid = zookeeper.pid(0);
    drop(zookeeper);
    assert!(is_gone(pid));
}

#[test]
fn zookeeper_of_three_members_has_a_leader_after_the_leader_was_killed() {
    let mut zookeeper = ZooKeeper::start(3);
    let leader = zookeeper.leader().expect("a leader");
    zookeeper.kill(leader);
    zookeeper.restart(leader);
    assert!(zookeeper.leader().is_some());
    let pids = [0, 1, 2].map(|member| zookeeper.pid(member));
    drop(zookeeper);
    assert!(pids.into_iter().all(is_gone));
}

#[test]
fn postgres_keeps_data_and_port_and_leaves_nothing() {
    let mut postgres = Postgres::start();
    let name = postgres.fresh_database_name();
    assert_ne!(postgres.fresh_database_name(), name);
    let address = postgres.address();
    postgres.kill();
    assert!(!answers(&address));
    postgres.restart();
    assert_eq!(postgres.address(), address);
    let found = postgres.sql(&format!("SELECT datname FROM pg_database WHERE datname = '{name}'"));
    assert_eq!(found.as_deref().map(str::trim), Ok(name.as_str()));
    postgres.suspend();
    let pid = postgres.pid();
    drop(postgres);
    assert!(is_gone(pid));
    assert!(!answers(&address));
}

#[test]
fn mariadb_keeps_data_and_port_and_leaves_nothing() {
    let mut mariadb = MariaDb::start();
    let name = mariadb.fresh_database_name();
    assert_ne!(mariadb.fresh_database_name(), name);
    let address = mariadb.address();
    mariadb.kill();
    assert!(!answers(&address));
    mariadb.restart();
    assert_eq!(mariadb.address(), address);
    let found = mariadb.sql(&format!("SHOW DATABASES LIKE '{name}'"));
    assert_eq!(found.as_deref().map(str::trim), Ok(name.as_str()));
    mariadb.suspend();
    let pid = mariadb.pid();
    drop(mariadb);
    assert!(is_gone(pid));
}

/// The test starts itself a second time as the process that is killed.
#[tokio::test]
async fn servers_do_not_survive_a_killed_test_process() {
    const PIDS_INTO: &str = "TESTKIT_PIDS_INTO";
    if let Some(file) = std::env::var_os(PIDS_INTO) {
        // From a thread that ends: the servers must not end with it.
        let start = || (Etcd::start(1), Postgres::start());
        let (etcd, postgres) = std::thread::Builder::new().spawn(start).unwrap().join().unwrap();
        let written = Path::new(&file).with_extension("new");
        std::fs::write(&written, format!("{} {}", etcd.pid(0), postgres.pid())).unwrap();
        std::fs::rename(written, file).unwrap();
        std::future::pending::<()>().await;
    }
    // What a killed process leaves behind is removed with this folder, which servers of other users may pass through.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = folder.path().join("pids");
    let me = std::env::current_exe().unwrap();
    let args = ["--exact", "servers_do_not_survive_a_killed_test_process"].map(str::to_owned);
    let env = [
        (PIDS_INTO.to_owned(), file.display().to_string()),
        ("TMPDIR".to_owned(), folder.path().display().to_string()),
    ];
    let mut other = belfry_testkit::Daemon::start("a test process", &me, &args, &env, &folder.path().join("stderr"));
    let pids = until("the servers run", async || std::fs::read_to_string(&file).ok()).await;
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| !is_gone(*pid)));
    other.kill9();
    until("the servers are gone", async || pids.iter().all(|pid| is_dead(*pid)).then_some(())).await;
}

/// Gone, or waiting for whoever inherits orphans here to look at it.
fn is_dead(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

/// Answers each chunk with itself, and counts them.
struct Echo {
    address: String,
    heard: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heard = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
        let all = heard.clone();
        let serve = move |mut stream: TcpStream| {
            let mut chunk = [0; 1024];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                all.lock().unwrap().push(String::from_utf8_lossy(&chunk[..count]).into_owned());
                if stream.write_all(&chunk[..count]).is_err() {
                    return;
                }
            }
        };
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let serve = serve.clone();
                std::thread::Builder::new().spawn(move || serve(stream)).unwrap();
            }
        };
        std::thread::Builder::new().spawn(accept).unwrap();
        Self { address, heard }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// None: the connection was cut.
fn ask(stream: &mut TcpStream, question: &str) -> Option<String> {
    stream.write_all(question.as_bytes()).ok()?;
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer).ok()?;
    String::from_utf8(answer).ok()
}

#[test]
fn the_proxy_loses_exactly_one_answer() {
    let echo = Echo::start();
    let proxy = Proxy::before(&echo.address);
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "one").as_deref(), Some("one"));
    proxy.lose_next_answer();
    assert_eq!(ask(&mut stream, "two"), None);
    assert_eq!(ask(&mut connect(&proxy), "three").as_deref(), Some("three"));
    assert_eq!(echo.heard(), ["one", "two", "three"]);
    assert_eq!(proxy.answers_lost(), 1);
}

#[test]
fn the_proxy_loses_the_answer_to_a_chosen_request() {
    let echo = Echo::start();
    let proxy = Proxy::before(&echo.address);
    let mut stream = connect(&proxy);
    proxy.lose_answer_to(b"COMMIT");
    assert_eq!(ask(&mut stream, "BEGIN").as_deref(), Some("BEGIN"));
    assert_eq!(proxy.answers_lost(), 0);
    assert_eq!(ask(&mut stream, "COMMIT;"), None);
    assert_eq!(echo.heard(), ["BEGIN", "COMMIT;"]);
    assert_eq!(proxy.answers_lost(), 1);
}

#[test]
fn a_cut_proxy_refuses_until_it_is_healed() {
    let echo = Echo::start();
    let proxy = Proxy::before(&echo.address);
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "one").as_deref(), Some("one"));
    proxy.cut();
    assert_eq!(ask(&mut stream, "two"), None);
    let refused = TcpStream::connect(proxy.address()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    proxy.heal();
    assert_eq!(ask(&mut connect(&proxy), "three").as_deref(), Some("three"));
    assert_eq!(echo.heard(), ["one", "three"]);
}

#[test]
fn a_stalled_proxy_holds_bytes_back_until_it_is_healed() {
    let echo = Echo::start();
    let proxy = Proxy::before(&echo.address);
    let mut stream = connect(&proxy);
    assert_eq!(ask(&mut stream, "one").as_deref(), Some("one"));
    proxy.stall();
    stream.write_all(b"two").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(stream.read(&mut [0; 8]).is_err());
    assert_eq!(echo.heard(), ["one"]);
    proxy.heal();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = [0; 3];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"two");
}
