//! Random numbers that can be had again: the same seed gives the same test.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Seed(u64);

impl Seed {
    pub fn of(number: u64) -> Self {
        Self(number)
    }

    /// From `BELFRY_SEED`, else `default`; said on stderr, which a failed test shows.
    pub fn from_env(default: u64) -> Self {
        Self(Self::number_from_env(default))
    }

    pub fn number_from_env(default: u64) -> u64 {
        let seed = std::env::var("BELFRY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
        eprintln!("seed {seed}; the same one again: BELFRY_SEED={seed}");
        seed
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
