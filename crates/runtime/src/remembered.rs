//! Answers that are kept for a while, so that nobody asks for them again.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A bounded number of answers by key, each kept for the same time.
#[derive(Debug)]
pub struct Remembered<K, V> {
    at_most: usize,
    time: Duration,
    kept: Mutex<HashMap<K, (V, Instant)>>,
}

impl<K: Eq + Hash, V: Clone> Remembered<K, V> {
    /// Keeps at most so many answers, each for this time.
    #[must_use]
    pub fn new(at_most: usize, time: Duration) -> Self {
        Self { at_most, time, kept: Mutex::new(HashMap::new()) }
    }

    /// The answer, unless its time is over.
    pub fn get(&self, key: &K) -> Option<V> {
        let kept = self.kept.lock();
        kept.get(key).filter(|(_, until)| *until > Instant::now()).map(|(answer, _)| answer.clone())
    }

    /// Keeps an answer. Where there are too many, those whose time is over go, or else all.
    pub fn insert(&self, key: K, answer: V) {
        let now = Instant::now();
        let mut kept = self.kept.lock();
        if kept.len() >= self.at_most {
            kept.retain(|_, (_, until)| *until > now);
            if kept.len() >= self.at_most {
                kept.clear();
            }
        }
        kept.insert(key, (answer, now + self.time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_with_its_time_and_they_are_bounded() {
        let remembered = Remembered::new(2, Duration::from_secs(10));
        remembered.insert("a", 1);
        tokio::time::advance(Duration::from_secs(9)).await;
        remembered.insert("b", 2);
        assert_eq!((remembered.get(&"a"), remembered.get(&"b")), (Some(1), Some(2)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((remembered.get(&"a"), remembered.get(&"b")), (None, Some(2)));
        // Full: the one whose time is over goes.
        remembered.insert("c", 3);
        assert_eq!((remembered.get(&"b"), remembered.get(&"c")), (Some(2), Some(3)));
        // Full of answers that hold: all go.
        remembered.insert("d", 4);
        assert_eq!((remembered.get(&"b"), remembered.get(&"d")), (None, Some(4)));
    }
}
