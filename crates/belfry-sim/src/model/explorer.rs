//! Breadth first through all states, so that the first way to a broken promise is a shortest one.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

use xxhash_rust::xxh3::Xxh3;

/// A system that can be explored.
pub trait System: Clone + Hash {
    type Step: std::fmt::Debug + Clone;

    fn steps(&self) -> Vec<Self::Step>;
    fn after(&self, step: &Self::Step) -> Self;
    /// What is wrong in this state.
    fn broken(&self) -> Option<String>;
    /// Nothing failed on the way here.
    fn is_undisturbed(&self) -> bool;
    /// What is not done, in a state from which nothing goes on.
    fn undone(&self) -> Option<String>;
}

#[derive(Debug)]
pub struct Explored {
    pub states: usize,
    /// Every state was seen, or what was looked for was found.
    pub complete: bool,
    pub found: Option<Found>,
}

/// A broken promise and the way to it.
#[derive(Debug)]
pub struct Found {
    pub what: String,
    pub way: Vec<String>,
}

/// Ends without an answer after `states_max` states.
pub fn explore<S: System>(first: S, states_max: usize) -> Explored {
    let mut seen = HashSet::new();
    seen.insert(digest(&first));
    // Each state with the step and the place of the state that it came from.
    let mut ways: Vec<(usize, Option<S::Step>)> = vec![(0, None)];
    let mut queue = VecDeque::from([(0, first)]);
    while let Some((place, state)) = queue.pop_front() {
        let steps = state.steps();
        let undone = if steps.is_empty() && state.is_undisturbed() { state.undone() } else { None };
        if let Some(what) = state.broken().or(undone) {
            return Explored {
                states: seen.len(),
                complete: true,
                found: Some(Found { what, way: way_to(&ways, place) }),
            };
        }
        for step in steps {
            let next = state.after(&step);
            if seen.insert(digest(&next)) {
                if seen.len() > states_max {
                    return Explored { states: seen.len(), complete: false, found: None };
                }
                ways.push((place, Some(step)));
                queue.push_back((ways.len() - 1, next));
            }
        }
    }
    Explored { states: seen.len(), complete: true, found: None }
}

fn way_to<Step: std::fmt::Debug>(ways: &[(usize, Option<Step>)], mut place: usize) -> Vec<String> {
    let mut way = Vec::new();
    while let (before, Some(step)) = &ways[place] {
        way.push(format!("{step:?}"));
        place = *before;
    }
    way.reverse();
    way
}

fn digest(state: &impl Hash) -> u128 {
    let mut hash = Xxh3::new();
    state.hash(&mut Bytes(&mut hash));
    hash.digest128()
}

/// 128 bits, so that two states are never taken for one.
struct Bytes<'a>(&'a mut Xxh3);

impl std::hash::Hasher for Bytes<'_> {
    fn finish(&self) -> u64 {
        self.0.digest()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}
