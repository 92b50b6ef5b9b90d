//! What the servers stand on: a database, and beside it the members of a coordinator where that is something else.

use crate::servers::{Etcd, MariaDb, Postgres, ZooKeeper};

const MEMBERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Files that belong to one server.
    Sqlite,
    Postgres,
    MariaDb,
    /// Three members, and the store on PostgreSQL.
    Etcd,
    /// Three members, and the store on MariaDB.
    ZooKeeper,
}

impl Backend {
    pub const ALL: [Backend; 5] =
        [Backend::Sqlite, Backend::Postgres, Backend::MariaDb, Backend::Etcd, Backend::ZooKeeper];

    pub fn name(self) -> &'static str {
        match self {
            Backend::Sqlite => "sqlite",
            Backend::Postgres => "postgres",
            Backend::MariaDb => "mariadb",
            Backend::Etcd => "etcd",
            Backend::ZooKeeper => "zookeeper",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    pub(super) fn servers(self) -> usize {
        match self {
            Backend::Sqlite => 1,
            Backend::Postgres | Backend::MariaDb | Backend::Etcd | Backend::ZooKeeper => 3,
        }
    }

    pub(super) fn start(self) -> Ground {
        let database = match self {
            Backend::Sqlite => None,
            Backend::Postgres | Backend::Etcd => Some(Database::Postgres(Postgres::start())),
            Backend::MariaDb | Backend::ZooKeeper => Some(Database::MariaDb(MariaDb::start())),
        };
        let members = match self {
            Backend::Sqlite | Backend::Postgres | Backend::MariaDb => None,
            Backend::Etcd => Some(Members::Etcd(Etcd::start(MEMBERS))),
            Backend::ZooKeeper => Some(Members::ZooKeeper(ZooKeeper::start(MEMBERS))),
        };
        let name = match &database {
            None => String::new(),
            Some(Database::Postgres(postgres)) => postgres.fresh_database_name(),
            Some(Database::MariaDb(mariadb)) => mariadb.fresh_database_name(),
        };
        Ground { database, name, members }
    }
}

pub(super) struct Ground {
    database: Option<Database>,
    /// Of the database in it.
    name: String,
    members: Option<Members>,
}

enum Database {
    Postgres(Postgres),
    MariaDb(MariaDb),
}

enum Members {
    Etcd(Etcd),
    ZooKeeper(ZooKeeper),
}

impl Ground {
    pub(super) fn database_address(&self) -> Option<String> {
        self.database.as_ref().map(|database| match database {
            Database::Postgres(postgres) => postgres.address(),
            Database::MariaDb(mariadb) => mariadb.address(),
        })
    }

    pub(super) fn store_url(&self, address: &str) -> Option<String> {
        self.database.as_ref().map(|database| match database {
            Database::Postgres(postgres) => postgres.url_of(address, &self.name),
            Database::MariaDb(mariadb) => mariadb.url_of(address, &self.name),
        })
    }

    /// Empty when the store's database is the coordinator too.
    pub(super) fn member_addresses(&self) -> Vec<String> {
        match &self.members {
            None => Vec::new(),
            Some(Members::Etcd(etcd)) => etcd.endpoints(),
            Some(Members::ZooKeeper(zookeeper)) => zookeeper.endpoints(),
        }
    }

    pub(super) fn coordinator_url(&self, addresses: &[String]) -> Option<String> {
        self.members.as_ref().map(|members| match members {
            Members::Etcd(etcd) => etcd.url_of(addresses),
            Members::ZooKeeper(_) => format!("zookeeper://{}", addresses.join(",")),
        })
    }

    pub(super) fn kill_database(&mut self) {
        match &mut self.database {
            None => {}
            Some(Database::Postgres(postgres)) => postgres.kill(),
            Some(Database::MariaDb(mariadb)) => mariadb.kill(),
        }
    }

    pub(super) fn restart_database(&mut self) {
        match &mut self.database {
            None => {}
            Some(Database::Postgres(postgres)) => postgres.restart(),
            Some(Database::MariaDb(mariadb)) => mariadb.restart(),
        }
    }

    /// It accepts connections, and answers nothing.
    pub(super) fn suspend_database(&self) {
        match &self.database {
            None => {}
            Some(Database::Postgres(postgres)) => postgres.suspend(),
            Some(Database::MariaDb(mariadb)) => mariadb.suspend(),
        }
    }

    pub(super) fn resume_database(&self) {
        match &self.database {
            None => {}
            Some(Database::Postgres(postgres)) => postgres.resume(),
            Some(Database::MariaDb(mariadb)) => mariadb.resume(),
        }
    }

    pub(super) fn kill_member(&mut self, member: usize) {
        match &mut self.members {
            None => {}
            Some(Members::Etcd(etcd)) => etcd.kill(member),
            Some(Members::ZooKeeper(zookeeper)) => zookeeper.kill(member),
        }
    }

    /// Whether the members that run have a leader. Waits for an answer of theirs.
    pub(super) fn has_leader(&self) -> bool {
        tokio::task::block_in_place(|| match &self.members {
            None => true,
            Some(Members::Etcd(etcd)) => etcd.serves(),
            Some(Members::ZooKeeper(zookeeper)) => zookeeper.leader().is_some(),
        })
    }

    /// Connections to it go on to be accepted, and nothing is answered.
    pub(super) fn pause_member(&self, member: usize) {
        match &self.members {
            None => {}
            Some(Members::Etcd(etcd)) => etcd.suspend(member),
            Some(Members::ZooKeeper(zookeeper)) => zookeeper.suspend(member),
        }
    }

    pub(super) fn resume_member(&self, member: usize) {
        match &self.members {
            None => {}
            Some(Members::Etcd(etcd)) => etcd.resume(member),
            Some(Members::ZooKeeper(zookeeper)) => zookeeper.resume(member),
        }
    }

    pub(super) fn leading_member(&self) -> Option<usize> {
        tokio::task::block_in_place(|| match &self.members {
            None => None,
            Some(Members::Etcd(etcd)) => etcd.leader(),
            Some(Members::ZooKeeper(zookeeper)) => zookeeper.leader(),
        })
    }

    pub(super) fn restart_member(&mut self, member: usize) {
        match &mut self.members {
            None => {}
            Some(Members::Etcd(etcd)) => etcd.restart(member),
            Some(Members::ZooKeeper(zookeeper)) => zookeeper.restart(member),
        }
    }
}
