//! Cache of pods seen by filter calls.
//!
//! The bind call names a pod without containing it. Reading it from the API server would cost as much as the
//! Binding, so the result of filter is cached. This is a cache, not a reservation: an evicted pod is read
//! again.

use std::collections::HashMap;

use crate::decide::Ownership;

/// Caches the latest pods: at least `capacity`, at most twice as many.
#[derive(Debug)]
pub struct PodCache {
    capacity: usize,
    young: HashMap<String, Ownership>,
    old: HashMap<String, Ownership>,
}

impl PodCache {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), young: HashMap::new(), old: HashMap::new() }
    }

    /// Stores a pod's ownership by its UID.
    pub fn remember(&mut self, uid: &str, ownership: Ownership) {
        if uid.is_empty() {
            return;
        }
        if self.young.len() >= self.capacity {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(uid.to_owned(), ownership);
    }

    /// Ownership of the pod, if it is cached.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Ownership> {
        self.young.get(uid).or_else(|| self.old.get(uid))
    }

    /// Removes a bound pod.
    pub fn forget(&mut self, uid: &str) {
        self.young.remove(uid);
        self.old.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_at_least_its_capacity_and_never_more_than_twice() {
        let mut cache = PodCache::new(100);
        for n in 0..1000 {
            cache.remember(&n.to_string(), Ownership::Foreign);
            assert!(cache.young.len() + cache.old.len() <= 200);
        }
        assert!((900..1000).all(|n| cache.get(&n.to_string()).is_some()));
        assert!(cache.get("0").is_none());
        cache.forget("999");
        assert!(cache.get("999").is_none());
    }
}
