//! Deduplicated pod templates of jobs. Jobs of a sweep differ in their names only, and a template is most of
//! a job's size.
//!
//! The memory of different templates is shared out by namespaces: beyond its share a namespace's waiting jobs leave
//! theirs out until there is room. A job that holds GPUs keeps its own in any case.

use std::collections::HashMap;

use andreas_api::shared_template::SharedTemplate;
use ring::digest::{SHA256, digest};

/// Templates kept beyond twice the number in use at the last cleanup.
const SLACK: usize = 64;
/// Bytes of memory that templates of one namespace may take, and those of all. Beyond that of all each namespace may
/// have a little, so that one finds room whatever others do.
const OF_ONE: usize = 128 << 20;
const OF_ALL: usize = 256 << 20;
const OF_EACH: usize = 4 << 20;

/// Templates by their digest.
#[derive(Default)]
pub struct Templates {
    known: HashMap<[u8; 32], StoredTemplate>,
    /// Number in use at the last cleanup.
    in_use: usize,
    /// Bytes by namespace.
    used: HashMap<String, usize>,
}

/// A template, and who pays for it: the first namespace that had it.
struct StoredTemplate {
    template: SharedTemplate,
    namespace: String,
    bytes: usize,
}

impl Templates {
    /// Replaces the template by an equal stored one, if any. Drops one that is too large, and one for which its namespace has
    /// no room, if it `may_wait`.
    pub fn share(&mut self, namespace: &str, template: &mut SharedTemplate, may_wait: bool) {
        let Some(text) = template.json_or_leave_out() else {
            if may_wait {
                template.forget();
            }
            return;
        };
        let Ok(digest) = <[u8; 32]>::try_from(digest(&SHA256, &text).as_ref()) else { return };
        if let Some(known) = self.known.get(&digest) {
            template.share(&known.template);
            return;
        }
        if self.known.len() >= 2 * self.in_use + SLACK {
            self.clean_up();
        }
        let bytes = template.held_bytes(&text);
        if may_wait && !self.has_room(namespace, bytes) {
            template.leave_out();
            return;
        }
        *self.used.entry(namespace.to_owned()).or_default() += bytes;
        self.known.insert(
            digest,
            StoredTemplate { template: template.clone(), namespace: namespace.to_owned(), bytes },
        );
    }

    /// Whether a namespace may have so many bytes more.
    pub fn has_room(&self, namespace: &str, bytes: usize) -> bool {
        let used = self.used.get(namespace).copied().unwrap_or(0) + bytes;
        used <= OF_EACH || used <= OF_ONE && self.bytes() + bytes <= OF_ALL
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.used.values().sum()
    }

    /// Lets go what no job has any more.
    pub fn clean_up(&mut self) {
        self.known.retain(|_, known| known.template.holders() > 1);
        self.in_use = self.known.len();
        self.used.clear();
        for known in self.known.values() {
            *self.used.entry(known.namespace.clone()).or_default() += known.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(image: &str) -> SharedTemplate {
        let text = serde_json::json!({"spec": {"containers": [{"name": "t", "image": image}]}});
        serde_json::from_value(text).expect("a template")
    }

    #[test]
    fn equal_templates_are_held_once_and_unused_ones_are_let_go() {
        let mut templates = Templates::default();
        let (mut first, mut second) = (template("x"), template("x"));
        templates.share("a", &mut first, true);
        templates.share("a", &mut second, true);
        assert!(first.is_shared_with(&second));
        for number in 0..10 * SLACK {
            templates.share("a", &mut template(&number.to_string()), true);
        }
        assert!(templates.known.len() <= 2 * SLACK, "{}", templates.known.len());
        let mut third = template("x");
        templates.share("a", &mut third, true);
        assert!(third.is_shared_with(&first));
    }

    #[test]
    fn templates_of_one_namespace_take_no_more_memory_than_their_share() {
        let mut templates = Templates::default();
        let mut jobs: Vec<SharedTemplate> = Vec::new();
        let values: Vec<String> = (0..4_096).map(|n| format!("{n:011}")).collect();
        let mut add = |templates: &mut Templates, namespace: &str, may_wait: bool| {
            let term = serde_json::json!({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": values}]});
            let affinity = serde_json::json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
            let spec =
                serde_json::json!({"containers": [{"name": jobs.len().to_string()}], "affinity": affinity});
            let mut template: SharedTemplate =
                serde_json::from_value(serde_json::json!({ "spec": spec })).expect("a template");
            templates.share(namespace, &mut template, may_wait);
            let kept = !template.has_no_room();
            jobs.push(template);
            kept
        };
        let kept = (0..700).filter(|_| add(&mut templates, "a", true)).count();
        assert!((400..700).contains(&kept) && templates.bytes() <= OF_ONE, "{kept}, {}", templates.bytes());
        // One that holds GPUs keeps its own, and another namespace has its share.
        assert!(!add(&mut templates, "a", true) && add(&mut templates, "a", false));
        while add(&mut templates, "b", true) {}
        assert!(templates.bytes() > OF_ALL - (1 << 20) && templates.bytes() <= OF_ALL);
        // A third has a little, and those have room again whose jobs are gone.
        assert!(add(&mut templates, "c", true) && !add(&mut templates, "b", true));
        drop(jobs);
        templates.clean_up();
        assert_eq!(templates.bytes(), 0);
    }
}
