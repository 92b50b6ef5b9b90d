//! The tables, once for all databases; only type names differ. Forward-only: a released migration is never edited, a change is
//! a new entry at the end. What runs again after a crash must find that it is done: MySQL cannot undo half a migration.

use belfry_sql::{Dialect, Migration};

pub(crate) fn migrations(dialect: Dialect) -> &'static [Migration] {
    match dialect {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
        Dialect::MySql => MYSQL,
    }
}

// Ids and words compare byte by byte everywhere: the order of a run's text is the order of its time, and a page of names goes on
// where the last one ended. Texts are utf8mb4 whatever the default of the database is. The widest index, over a label, its value
// and a job's name, has just the 3072 bytes that MySQL allows.
const SQLITE: &[Migration] = tables!(
    id = "VARCHAR(26)",
    code = "VARCHAR(16)",
    hash = "CHAR(64)",
    word = "VARCHAR(128)",
    label = "VARCHAR(128)",
    text = "TEXT",
    blob = "BLOB",
    newest_first = "GROUP_CONCAT(e.took, '' ORDER BY e.id DESC)"
);
const POSTGRES: &[Migration] = tables!(
    id = "VARCHAR(26) COLLATE \"C\"",
    code = "VARCHAR(16) COLLATE \"C\"",
    hash = "VARCHAR(64) COLLATE \"C\"",
    word = "VARCHAR(128) COLLATE \"C\"",
    label = "VARCHAR(256) COLLATE \"C\"",
    text = "TEXT COLLATE \"C\"",
    blob = "BYTEA",
    newest_first = "STRING_AGG(e.took, '' ORDER BY e.id DESC)"
);
const MYSQL: &[Migration] = tables!(
    id = "VARCHAR(26) CHARACTER SET ascii COLLATE ascii_bin",
    code = "VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin",
    hash = "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
    word = "VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    label = "VARCHAR(256) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    text = "MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    blob = "MEDIUMBLOB",
    newest_first = "GROUP_CONCAT(e.took ORDER BY e.id DESC SEPARATOR '')"
);

macro_rules! tables {
    (
        id = $id:literal, code = $code:literal, hash = $hash:literal, word = $word:literal, label = $label:literal,
        text = $text:literal, blob = $blob:literal, newest_first = $newest_first:literal
    ) => {
        &[
            Migration {
                name: "0001_counters",
                statements: &[
                    concat!("CREATE TABLE counters (name ", $word, " NOT NULL PRIMARY KEY, value BIGINT NOT NULL)"),
                    "INSERT INTO counters (name, value) VALUES ('job_changes', 0), ('audit', 0)",
                ],
            },
            Migration {
                name: "0002_jobs",
                statements: &[
                    // removed_seq is 0 for the living and the change's number for the removed: a removed job frees its name.
                    concat!(
                        "CREATE TABLE jobs (id ", $id, " NOT NULL PRIMARY KEY, namespace ", $word, " NOT NULL, name ", $word,
                        " NOT NULL, removed_seq BIGINT NOT NULL, revision BIGINT NOT NULL, enabled INT NOT NULL,",
                        " created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, counts_from BIGINT NOT NULL, removed_at BIGINT,",
                        " retention_age_ms BIGINT, retention_runs BIGINT, seq BIGINT NOT NULL, words ", $text, " NOT NULL,",
                        " document ", $text, " NOT NULL, UNIQUE (removed_seq, namespace, name))"
                    ),
                    "CREATE INDEX jobs_by_change ON jobs (seq)",
                    "CREATE INDEX jobs_by_name ON jobs (namespace, name)",
                    concat!(
                        "CREATE TABLE job_labels (job ", $id, " NOT NULL, label ", $label, " NOT NULL, value ", $label,
                        " NOT NULL, namespace ", $word, " NOT NULL, name ", $word, " NOT NULL, PRIMARY KEY (job, label))"
                    ),
                    "CREATE INDEX job_labels_by_value ON job_labels (label, value, namespace, name)",
                    concat!(
                        "CREATE TABLE job_revisions (job ", $id, " NOT NULL, revision BIGINT NOT NULL, at BIGINT NOT NULL, author ",
                        $word, " NOT NULL, document ", $text, " NOT NULL, PRIMARY KEY (job, revision))"
                    ),
                ],
            },
            Migration {
                name: "0003_runs",
                statements: &[
                    concat!(
                        "CREATE TABLE runs (id ", $id, " NOT NULL PRIMARY KEY, job ", $id, " NOT NULL, namespace ", $word,
                        " NOT NULL, job_name ", $word, " NOT NULL, revision BIGINT NOT NULL, planned BIGINT NOT NULL,",
                        " trigger_kind ", $code, " NOT NULL, trigger_by ", $word, ", trigger_key ", $text, ", trigger_of ", $id,
                        ", state ", $code, " NOT NULL, reason ", $text, ", attempt BIGINT NOT NULL, node ", $id, ", node_name ",
                        $word, ", incarnation BIGINT, fence BIGINT NOT NULL, claimed_at BIGINT NOT NULL, dispatched_at BIGINT,",
                        " started_at BIGINT, ended_at BIGINT, exit_code BIGINT, exit_signal BIGINT, late INT NOT NULL,",
                        " cpu_ms BIGINT NOT NULL, max_rss_bytes BIGINT NOT NULL, left_behind BIGINT NOT NULL,",
                        " output_bytes BIGINT NOT NULL, output_dropped_bytes BIGINT NOT NULL, progress BIGINT NOT NULL)"
                    ),
                    // Its state is in the index so that a filter by state reads no row that it drops.
                    "CREATE INDEX runs_by_job ON runs (job, id, state)",
                    "CREATE INDEX runs_by_state ON runs (state, id)",
                    // Without a state these two are read as a merge of all states, which costs a seek per state and saves an index.
                    "CREATE INDEX runs_by_node ON runs (node, state, id)",
                    "CREATE INDEX runs_by_namespace ON runs (namespace, state, id)",
                    // Keys of manual triggers apart: scheduled runs have none and should not pay for an index on it.
                    concat!(
                        "CREATE TABLE run_keys (job ", $id, " NOT NULL, key_hash ", $hash, " NOT NULL, run ", $id,
                        " NOT NULL, PRIMARY KEY (job, key_hash))"
                    ),
                    "CREATE INDEX run_keys_by_run ON run_keys (run)",
                    // Ended runs per UTC day of their planned instant. Says what happened, so pruning runs leaves it alone.
                    concat!(
                        "CREATE TABLE run_counts (day BIGINT NOT NULL, namespace ", $word,
                        " NOT NULL, state ", $code, " NOT NULL, n BIGINT NOT NULL, PRIMARY KEY (day, namespace, state))"
                    ),
                ],
            },
            Migration {
                name: "0004_output",
                statements: &[concat!(
                    "CREATE TABLE output_chunks (run ", $id, " NOT NULL, attempt BIGINT NOT NULL, seq BIGINT NOT NULL,",
                    " stream INT NOT NULL, byte_offset BIGINT NOT NULL, at BIGINT NOT NULL, dropped_bytes BIGINT NOT NULL,",
                    " packed INT NOT NULL, plain_bytes BIGINT NOT NULL, content ", $blob, " NOT NULL, PRIMARY KEY (run, attempt, seq))"
                )],
            },
            Migration {
                name: "0005_users",
                statements: &[
                    concat!(
                        "CREATE TABLE users (name ", $word, " NOT NULL PRIMARY KEY, password_hash ", $text, " NOT NULL, grants ",
                        $text, " NOT NULL, is_admin INT NOT NULL, disabled INT NOT NULL, created_at BIGINT NOT NULL,",
                        " updated_at BIGINT NOT NULL)"
                    ),
                    concat!(
                        "CREATE TABLE tokens (id ", $word, " NOT NULL PRIMARY KEY, owner ", $word,
                        " NOT NULL, is_service INT NOT NULL, label ", $word, " NOT NULL, hash ", $hash, " NOT NULL UNIQUE, grants ", $text,
                        " NOT NULL, expires_at BIGINT, created_at BIGINT NOT NULL, last_used_at BIGINT)"
                    ),
                    "CREATE INDEX tokens_by_owner ON tokens (owner)",
                    concat!(
                        "CREATE TABLE sessions (hash ", $hash, " NOT NULL PRIMARY KEY, owner ", $word,
                        " NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL)"
                    ),
                    "CREATE INDEX sessions_by_owner ON sessions (owner)",
                    "CREATE INDEX sessions_by_expiry ON sessions (expires_at)",
                ],
            },
            Migration {
                name: "0006_nodes",
                statements: &[concat!(
                    "CREATE TABLE nodes (id ", $id, " NOT NULL PRIMARY KEY, name ", $word, " NOT NULL, labels ", $text,
                    " NOT NULL, weight BIGINT NOT NULL, slots BIGINT, draining INT NOT NULL, excluded INT NOT NULL, version ", $word,
                    " NOT NULL, incarnation BIGINT NOT NULL, first_seen BIGINT NOT NULL, removed_at BIGINT)"
                )],
            },
            Migration {
                name: "0007_audit",
                statements: &[
                    concat!(
                        "CREATE TABLE audit (seq BIGINT NOT NULL PRIMARY KEY, at BIGINT NOT NULL, actor ", $word,
                        " NOT NULL, origin ", $word, ", action ", $word, " NOT NULL, namespace ", $word, ", subject ", $text,
                        " NOT NULL, detail ", $text, " NOT NULL)"
                    ),
                    "CREATE INDEX audit_by_actor ON audit (actor, seq)",
                    "CREATE INDEX audit_by_namespace ON audit (namespace, seq)",
                    "CREATE INDEX audit_by_action ON audit (action, seq)",
                ],
            },
            Migration {
                name: "0008_settings",
                statements: &[concat!(
                    "CREATE TABLE settings (name ", $word, " NOT NULL PRIMARY KEY, value ", $text, " NOT NULL, updated_at BIGINT NOT NULL)"
                )],
            },
            Migration {
                name: "0009_run_counts_lock",
                statements: &["INSERT INTO counters (name, value) VALUES ('run_counts', 0)"],
            },
            Migration {
                name: "0010_join_tokens",
                statements: &[concat!(
                    "CREATE TABLE join_tokens (hash ", $hash, " NOT NULL PRIMARY KEY, created_at BIGINT NOT NULL,",
                    " expires_at BIGINT NOT NULL, used_at BIGINT, used_by ", $id, ", credential ", $hash, ", UNIQUE (used_by))"
                )],
            },
            Migration {
                name: "0011_run_placement",
                statements: &[concat!("ALTER TABLE runs ADD COLUMN placement ", $text)],
            },
            Migration {
                name: "0012_run_attempts",
                statements: &[concat!(
                    "CREATE TABLE run_attempts (run ", $id, " NOT NULL, attempt BIGINT NOT NULL, revision BIGINT NOT NULL, node ", $id,
                    ", node_name ", $word, ", incarnation BIGINT, fence BIGINT, dispatched_at BIGINT, state ", $code,
                    " NOT NULL, reason ", $text, ", started_at BIGINT, ended_at BIGINT NOT NULL, exit_code BIGINT,",
                    " exit_signal BIGINT, late INT NOT NULL, abandoned INT NOT NULL, cpu_ms BIGINT NOT NULL,",
                    " max_rss_bytes BIGINT NOT NULL, left_behind BIGINT NOT NULL, output_bytes BIGINT NOT NULL,",
                    " output_dropped_bytes BIGINT NOT NULL, PRIMARY KEY (run, attempt))"
                )],
            },
            Migration {
                name: "0013_next_attempt",
                statements: &["ALTER TABLE runs ADD COLUMN next_attempt_at BIGINT"],
            },
            Migration {
                name: "0014_run_marks",
                statements: &["ALTER TABLE runs ADD COLUMN marks INT NOT NULL DEFAULT 0"],
            },
            // Before it there was only `one`.
            Migration {
                name: "0015_jobs_run_on",
                statements: &[concat!("ALTER TABLE jobs ADD COLUMN run_on ", $code, " NOT NULL DEFAULT 'one'")],
            },
            Migration {
                name: "0016_jobs_by_run_on",
                statements: &["CREATE INDEX jobs_by_run_on ON jobs (run_on, id)"],
            },
            Migration {
                name: "0017_runs_held",
                statements: &["ALTER TABLE runs ADD COLUMN held INT NOT NULL DEFAULT 0"],
            },
            Migration {
                name: "0018_attempts_held",
                statements: &["ALTER TABLE run_attempts ADD COLUMN held INT NOT NULL DEFAULT 0"],
            },
            // Which ends of the job's runs are told, `belfry_core::webhook::bit`, and to whom.
            Migration {
                name: "0020_jobs_webhook_on",
                statements: &["ALTER TABLE jobs ADD COLUMN webhook_on INT NOT NULL DEFAULT 0"],
            },
            Migration {
                name: "0021_jobs_webhook_receiver",
                statements: &[concat!("ALTER TABLE jobs ADD COLUMN webhook_receiver ", $word)],
            },
            // What is told is kept as it was when it happened, so that every repetition says the same.
            Migration {
                name: "0022_deliveries",
                statements: &[
                    concat!(
                        "CREATE TABLE deliveries (run ", $id, " NOT NULL, attempt BIGINT NOT NULL, news ", $code, " NOT NULL, job ", $id,
                        " NOT NULL, namespace ", $word, " NOT NULL, job_name ", $word, " NOT NULL, revision BIGINT NOT NULL, reason ",
                        $text, ", planned BIGINT NOT NULL, started_at BIGINT, ended_at BIGINT, exit_code BIGINT, exit_signal BIGINT,",
                        " node_name ", $word, ", late INT NOT NULL, receiver ", $word, " NOT NULL, tries BIGINT NOT NULL,",
                        " first_try_at BIGINT, last_try_at BIGINT, last_status BIGINT, last_error ", $text,
                        ", next_try_at BIGINT, delivered_at BIGINT, PRIMARY KEY (run, attempt, news))"
                    ),
                    // What is not tried again has no next try, and is not in the range that is looked for.
                    "CREATE INDEX deliveries_due ON deliveries (receiver, next_try_at)",
                ],
            },
            Migration {
                name: "0023_runs_overdue",
                statements: &["ALTER TABLE runs ADD COLUMN overdue_at BIGINT"],
            },
            Migration {
                name: "0024_attempts_overdue",
                statements: &["ALTER TABLE run_attempts ADD COLUMN overdue_at BIGINT"],
            },
            Migration {
                name: "0025_attempts_saves",
                statements: &[concat!("ALTER TABLE run_attempts ADD COLUMN saves ", $text)],
            },
            Migration {
                name: "0026_scripts",
                statements: &[
                    concat!(
                        "CREATE TABLE scripts (namespace ", $word, " NOT NULL, name ", $word, " NOT NULL, version BIGINT NOT NULL, sha256 ",
                        $hash, " NOT NULL, at BIGINT NOT NULL, author ", $word, " NOT NULL, body ", $text,
                        " NOT NULL, PRIMARY KEY (namespace, name, version))"
                    ),
                    "INSERT INTO counters (name, value) VALUES ('scripts', 0)",
                ],
            },
            Migration {
                name: "0027_runs_script",
                statements: &[concat!("ALTER TABLE runs ADD COLUMN script ", $text)],
            },
            Migration {
                name: "0028_attempts_script",
                statements: &[concat!("ALTER TABLE run_attempts ADD COLUMN script ", $text)],
            },
            // How each job has been doing, kept with its ends: pruning runs leaves it alone. Ids are empty where there is none.
            Migration {
                name: "0029_job_standings",
                statements: &[
                    concat!(
                        "CREATE TABLE job_standings (job ", $id, " NOT NULL PRIMARY KEY, runs BIGINT NOT NULL DEFAULT 0,",
                        " failed_in_a_row BIGINT NOT NULL DEFAULT 0, last_success ", $id, " DEFAULT '' NOT NULL, last_missed ", $id,
                        " DEFAULT '' NOT NULL, last_run ", $id, " DEFAULT '' NOT NULL, last_state ", $code, ", last_planned BIGINT,",
                        " last_started_at BIGINT, last_ended_at BIGINT, last_exit_code BIGINT, last_node_name ", $word, ", took ", $text, ")"
                    ),
                    "CREATE INDEX job_standings_failing ON job_standings (failed_in_a_row)",
                    "CREATE INDEX job_standings_missed ON job_standings (last_missed)",
                    // From the history that is there; what was missed before is not looked for. 60 durations are less than MySQL cuts.
                    concat!(
                        "INSERT INTO job_standings (job, runs, failed_in_a_row, last_success, last_run, last_state, last_planned,",
                        " last_started_at, last_ended_at, last_exit_code, last_node_name, took) SELECT t.job, t.n,",
                        " (SELECT COUNT(*) FROM runs f WHERE f.job = t.job AND f.id > t.good",
                        " AND f.state IN ('failed', 'timed_out', 'killed', 'lost')), t.good, l.id, l.state, l.planned, l.started_at,",
                        " l.ended_at, l.exit_code, l.node_name, d.took FROM (SELECT job, COUNT(*) AS n, MAX(id) AS newest,",
                        " COALESCE(MAX(CASE WHEN state = 'succeeded' THEN id END), '') AS good FROM runs WHERE namespace <> 'dcron' AND state IN",
                        " ('succeeded', 'failed', 'timed_out', 'killed', 'lost', 'skipped', 'cancelled') GROUP BY job) t",
                        " JOIN runs l ON l.id = t.newest LEFT JOIN (SELECT e.job, ", $newest_first, " AS took FROM",
                        " (SELECT job, id, CONCAT(ended_at - started_at, ',') AS took,",
                        " ROW_NUMBER() OVER (PARTITION BY job ORDER BY id DESC) AS place FROM runs",
                        " WHERE state = 'succeeded' AND ended_at >= started_at) e WHERE e.place <= 60 GROUP BY e.job) d ON d.job = t.job"
                    ),
                ],
            },
            // Clocks of servers differ and are set, so the order of time is not that of the numbers.
            Migration {
                name: "0030_audit_by_at",
                statements: &["CREATE INDEX audit_by_at ON audit (at, seq)"],
            },
            Migration {
                name: "0031_audit_by_actor_at",
                statements: &["CREATE INDEX audit_by_actor_at ON audit (actor, at, seq)"],
            },
            Migration {
                name: "0032_audit_by_action_at",
                statements: &["CREATE INDEX audit_by_action_at ON audit (action, at, seq)"],
            },
            Migration {
                name: "0033_audit_by_namespace_at",
                statements: &["CREATE INDEX audit_by_namespace_at ON audit (namespace, at, seq)"],
            },
        ]
    };
}
use tables;
