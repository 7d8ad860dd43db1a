//! Deduplicated pod templates of jobs. Jobs of a sweep differ in their names only, and a template is most of
//! a job's size.

use std::collections::HashMap;

use andreas_api::shared_template::SharedTemplate;
use ring::digest::{SHA256, digest};

/// Templates kept beyond twice the number in use at the last cleanup.
const SLACK: usize = 64;

/// Templates by their digest.
#[derive(Default)]
pub struct Templates {
    known: HashMap<[u8; 32], SharedTemplate>,
    /// Number in use at the last cleanup.
    in_use: usize,
}

impl Templates {
    /// Replaces the template by an equal stored one, if any; drops one that is too large.
    pub fn share(&mut self, template: &mut SharedTemplate) {
        let Some(text) = template.json_or_leave_out() else { return };
        let Ok(digest) = <[u8; 32]>::try_from(digest(&SHA256, &text).as_ref()) else { return };
        if let Some(known) = self.known.get(&digest) {
            template.share(known);
            return;
        }
        if self.known.len() >= 2 * self.in_use + SLACK {
            self.known.retain(|_, template| template.holders() > 1);
            self.in_use = self.known.len();
        }
        self.known.insert(digest, template.clone());
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
        templates.share(&mut first);
        templates.share(&mut second);
        assert!(first.is_shared_with(&second));
        for number in 0..10 * SLACK {
            templates.share(&mut template(&number.to_string()));
        }
        assert!(templates.known.len() <= 2 * SLACK, "{}", templates.known.len());
        let mut third = template("x");
        templates.share(&mut third);
        assert!(third.is_shared_with(&first));
    }
}
