//! The highest term seen for each shard: an order of a lower one comes from a server that lost the shard and does not
//! know it yet.

use belfry_core::id::SHARD_COUNT;

#[derive(Default)]
pub(super) struct Terms([u64; SHARD_COUNT as usize]);

impl Terms {
    /// Whether an order of this term may be obeyed. Remembers the term if so.
    pub(super) fn admit(&mut self, shard: u32, term: u64) -> bool {
        let Some(highest) = self.0.get_mut(shard as usize) else { return false };
        *highest = term.max(*highest);
        term == *highest || belfry_core::planted::is("lower_term_obeyed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_term_is_refused_for_its_shard_alone() {
        let mut terms = Terms::default();
        assert!(terms.admit(3, 5) && terms.admit(3, 5) && terms.admit(3, 6));
        assert!(!terms.admit(3, 5));
        assert!(terms.admit(4, 1));
        assert!(!terms.admit(99, 1), "there is no such shard");
    }
}
