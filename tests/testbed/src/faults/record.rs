//! What went through the proxy, for counts and rates.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::request::{Verb, describe};

/// One request that came.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// When it came.
    pub at: Instant,
    /// The proxy's endpoint.
    pub caller: String,
    /// The caller's `User-Agent`.
    pub user_agent: String,
    /// What it does.
    pub verb: Verb,
    /// The resource with its subresource.
    pub resource: String,
    /// The namespace; empty for a whole cluster.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// Label and field selectors of a collection.
    pub selector: String,
    /// Whether this is a further page of a list.
    pub continues: bool,
    /// Status of the answer that the caller got; none while it waits or when it got none.
    pub status: Option<u16>,
    /// Status of the API server's own answer; none when it was not asked.
    pub upstream_status: Option<u16>,
}

impl Record {
    /// `patch trainingjobs/status team/bert`, for messages and counts.
    pub fn describe(&self) -> String {
        describe(self.verb, &self.resource, &self.namespace, &self.name)
    }
}

/// Records in the order they came, with what tests ask of them.
#[derive(Debug, Clone, Default)]
pub struct Records(pub Vec<Record>);

impl Records {
    /// Those for which `which` holds.
    pub fn only(mut self, which: impl Fn(&Record) -> bool) -> Self {
        self.0.retain(|record| which(record));
        self
    }

    /// Those that came at or after `start`.
    pub fn since(self, start: Instant) -> Self {
        self.only(|record| record.at >= start)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The most requests within any window of this length.
    pub fn most_within(&self, window: Duration) -> usize {
        let (mut most, mut first) = (0, 0);
        for (index, record) in self.0.iter().enumerate() {
            while record.at.duration_since(self.0[first].at) >= window {
                first += 1;
            }
            most = most.max(index + 1 - first);
        }
        most
    }

    /// Counts by a word made of each.
    pub fn count_by(&self, word: impl Fn(&Record) -> String) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for record in &self.0 {
            *counts.entry(word(record)).or_insert(0) += 1;
        }
        counts
    }

    /// Whole lists by resource and selector: further pages of one list do not count.
    pub fn lists(&self) -> BTreeMap<String, usize> {
        let first_pages = self.clone().only(|record| record.verb == Verb::List && !record.continues);
        first_pages.count_by(|record| format!("{} {}", record.resource, record.selector).trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_second_is_found() {
        let start = Instant::now();
        let record = |millis| Record {
            at: start + Duration::from_millis(millis),
            caller: "operator".into(),
            user_agent: String::new(),
            verb: Verb::List,
            resource: "pods".into(),
            namespace: String::new(),
            name: String::new(),
            selector: String::new(),
            continues: millis == 900,
            status: Some(200),
            upstream_status: Some(200),
        };
        let records = Records([0, 500, 900, 1100, 1499, 1500, 5000].map(record).to_vec());
        assert_eq!(records.most_within(Duration::from_secs(1)), 4);
        assert_eq!(records.lists(), BTreeMap::from([("pods".to_owned(), 6)]));
        assert_eq!(records.since(start + Duration::from_millis(1499)).len(), 3);
    }
}
