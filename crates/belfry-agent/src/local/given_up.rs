//! How far this node had come with jobs that it fires no more. One that comes back, a minute or a month later, goes on from there: what
//! was started here is not started again, and its fence grows on.

use std::collections::{BTreeSet, HashMap};

use belfry_core::JobId;

/// A node that is drained gives up all of its jobs at once.
const JOBS_MAX: usize = 10_000;

/// The job that came least far is forgotten first: whoever asks for one again asks soon.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp {
    jobs: HashMap<JobId, Left>,
    by_cursor: BTreeSet<(i64, JobId)>,
}

/// Where a job was left off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub cursor_ms: i64,
    pub fence: u64,
    pub was_home: bool,
}

impl GivenUp {
    pub fn get(&self, job: JobId) -> Option<Left> {
        self.jobs.get(&job).copied()
    }

    pub fn add(&mut self, job: JobId, left: Left) {
        self.remove(job);
        self.jobs.insert(job, left);
        self.by_cursor.insert((left.cursor_ms, job));
        if self.jobs.len() > JOBS_MAX
            && let Some((_, oldest)) = self.by_cursor.pop_first()
        {
            self.jobs.remove(&oldest);
        }
    }

    pub fn remove(&mut self, job: JobId) {
        if let Some(left) = self.jobs.remove(&job) {
            self.by_cursor.remove(&(left.cursor_ms, job));
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (JobId, Left)> + '_ {
        self.jobs.iter().map(|(job, left)| (*job, *left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_jobs_that_were_given_up_the_newest_are_remembered() {
        let mut given_up = GivenUp::default();
        for number in 1..=15_000 {
            let left = Left { cursor_ms: number as i64, fence: 1, was_home: number % 2 == 0 };
            given_up.add(JobId::from_u128(number), left);
        }
        assert_eq!(given_up.iter().count(), JOBS_MAX);
        assert!((5_001..=15_000).all(|number| given_up.get(JobId::from_u128(number)).is_some()));
    }
}
