//! Numbers drawn from a seed: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).

/// A sequence of numbers that a seed decides.
#[derive(Clone, Copy, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high.saturating_sub(low) + 1)
    }

    /// True with so many chances of a hundred.
    pub fn percent(&mut self, chances: u64) -> bool {
        self.between(1, 100) <= chances
    }

    /// One of them; `None` where there is none.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(all.len()).ok()?.checked_sub(1)?;
        all.get(usize::try_from(self.between(0, last)).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_sequence() {
        let draw = |seed| {
            let mut rng = SeededRng::new(seed);
            (0..50).map(|_| rng.between(3, 9)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(1).iter().all(|n| (3..=9).contains(n)));
        assert_eq!(SeededRng::new(1).one_of::<u8>(&[]), None);
    }
}
