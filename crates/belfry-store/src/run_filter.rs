//! Which runs a list shows, and the statement that finds a page of them. Run ids sort by planned instant, so a page is a range
//! of ids; every filter is led by an index that yields ids in order, and where there are several ranges they are merged.

use belfry_core::run::RunState;
use belfry_core::{JobId, NodeId, RunId, Timestamp};
use belfry_sql::{Dialect, Statement, Value};

use crate::branches::{BRANCHES_MAX, Branch};
use crate::columns::word;
use crate::dialect::newest_of;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobRef {
    Id(JobId),
    /// The job of this name and removed ones that had it.
    Name {
        namespace: String,
        name: String,
    },
}

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub job: Option<JobRef>,
    /// None: all. Some: only runs of these namespaces.
    pub namespaces: Option<Vec<String>>,
    /// Empty: all.
    pub states: Vec<RunState>,
    pub node: Option<NodeId>,
    /// Planned at or after.
    pub from: Option<Timestamp>,
    /// Planned before.
    pub to: Option<Timestamp>,
    /// Runs before this one, that is, planned earlier.
    pub cursor: Option<RunId>,
    pub limit: usize,
}

impl RunFilter {
    /// None when nothing can match. Asks for one run more than the limit. `jobs`: the ids that `job` stands for.
    pub(crate) fn page(&self, dialect: Dialect, columns: &str, jobs: Option<&[JobId]>) -> Option<Statement> {
        let mut namespaces = self.namespaces.clone();
        if let Some(namespaces) = &mut namespaces {
            namespaces.sort_unstable();
            namespaces.dedup();
        }
        let mut states = self.states.clone();
        states.sort_unstable_by_key(|state| state.as_str());
        states.dedup();
        let all_states = || RunState::ALL.to_vec();

        let mut branches = Vec::new();
        if let Some(jobs) = jobs {
            branches.extend(jobs.iter().map(|job| {
                Branch::default()
                    .equal("job", word(job))
                    .checked("state", &states)
                    .checked("node", self.node.as_slice())
                    .within(&namespaces)
            }));
        } else if let Some(node) = self.node {
            let states = if states.is_empty() { all_states() } else { states };
            let branch = |state: &RunState| {
                Branch::default().equal("node", word(node)).equal("state", word(state)).within(&namespaces)
            };
            branches.extend(states.iter().map(branch));
        } else {
            let spread = namespaces
                .as_ref()
                .map_or(0, |n| n.len() * if states.is_empty() { RunState::ALL.len() } else { states.len() });
            match &namespaces {
                Some(namespaces) if spread <= BRANCHES_MAX => {
                    let states = if states.is_empty() { all_states() } else { states };
                    for namespace in namespaces {
                        let branch = |state: &RunState| {
                            Branch::default().equal("namespace", word(namespace)).equal("state", word(state))
                        };
                        branches.extend(states.iter().map(branch));
                    }
                }
                _ if states.is_empty() => branches.push(Branch::default().within(&namespaces)),
                _ => branches.extend(
                    states.iter().map(|state| Branch::default().equal("state", word(state)).within(&namespaces)),
                ),
            }
        }
        if branches.is_empty() {
            return None;
        }
        let (first, before) = self.range();
        let first = first.map_or(Value::Text(String::new()), word);
        let before = before.map_or(Value::Text("~".to_owned()), word);
        // Always both ends, so that each combination of filters has one text, which stays prepared.
        let branches = branches.into_iter();
        let branches = branches.map(|branch| branch.that("id >= ? AND id < ?", [first.clone(), before.clone()]));
        let (texts, args): (Vec<String>, Vec<Vec<Value>>) = branches.map(Branch::spoken).unzip();
        let text = newest_of(dialect, "runs", columns, &["id"], &texts, self.limit + 1);
        Some(Statement { sql: text.into(), args: args.concat() })
    }

    /// From this id on, and before that one.
    fn range(&self) -> (Option<RunId>, Option<RunId>) {
        let to = self.to.map(RunId::first_at);
        let before = match (self.cursor, to) {
            (Some(cursor), Some(to)) => Some(cursor.min(to)),
            (cursor, to) => cursor.or(to),
        };
        (self.from.map(RunId::first_at), before)
    }
}
