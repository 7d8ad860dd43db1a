//! Plans of an operator made again from their snapshots: the same snapshot must give the same plan.
//!
//! In: a cluster while jobs run on it. Out: a file for each snapshot, with the plan that the operator made of it, and how many of them came
//! out the same. A plan that the next one replaced before it was read is counted and not compared.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use andreas_planner::{Options, Plan, Snapshot};
use anyhow::{Context as _, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::pages::Page;
use crate::scrape::{self, Scrape};

/// Between two reads of the page. Plans follow each other after a tenth of a second at the soonest, and seldom so.
const BETWEEN: Duration = Duration::from_millis(200);

/// How many plans came out the same when they were made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamePlans {
    /// Plans that the operator made.
    pub made: usize,
    /// Those whose snapshot was read, and planned again.
    pub again: usize,
    /// Those of them that came out the same.
    pub same: usize,
}

/// Saves the operator's snapshots until it is ended or dropped.
pub struct Recorder {
    made_before: usize,
    stop: Stop,
    thread: JoinHandle<Result<Vec<PathBuf>>>,
}

/// Stops the recorder's thread when it is dropped.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Recorder {
    /// Begins to save snapshots in a folder, each named by its second.
    ///
    /// # Errors
    /// When the folder cannot be made, or nobody answers for the operator.
    pub async fn start(c: &Cluster, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let page = Page::open(c, "/snapshot").await?;
        let made_before = plans_made(c).await?;
        let stopped = Arc::new(AtomicBool::new(false));
        let (stop, folder) = (Stop(Arc::clone(&stopped)), folder.to_owned());
        let thread = std::thread::spawn(move || record(|| page.get(), &folder, &stopped));
        Ok(Self { made_before, stop, thread })
    }

    /// Ends. What was saved stays.
    ///
    /// # Errors
    /// When a file could not be written, or the operator's metrics are not shown.
    pub async fn end(self, c: &Cluster) -> Result<Recorded> {
        let Self { made_before, stop, thread } = self;
        drop(stop);
        let files = tokio::task::spawn_blocking(move || thread.join()).await?;
        let files = files.map_err(|_| anyhow!("the recorder panicked"))??;
        // The last plan before the first read is read as well.
        let made = plans_made(c).await?.saturating_sub(made_before) + usize::from(made_before > 0);
        Ok(Recorded { made, files })
    }
}

/// Saves what `read` shows until it is stopped. Plans of one second have the same `now`, so their whole texts are compared.
fn record(
    read: impl Fn() -> Result<(u16, String)>,
    folder: &Path,
    stopped: &AtomicBool,
) -> Result<Vec<PathBuf>> {
    let (began, mut files, mut last) = (Instant::now(), Vec::new(), String::new());
    while !stopped.load(Ordering::Relaxed) {
        // Before its first plan, and while it is started again, an operator has none to show.
        if let Ok((200, text)) = read()
            && text != last
        {
            let file = folder.join(format!("{:07.2}.json", began.elapsed().as_secs_f64()));
            std::fs::write(&file, &text).with_context(|| format!("writing {}", file.display()))?;
            files.push(file);
            last = text;
        }
        std::thread::sleep(BETWEEN);
    }
    Ok(files)
}

/// Plans of all running operators since their start.
async fn plans_made(c: &Cluster) -> Result<usize> {
    let found = Scrape::of(c).await?;
    let mut made = 0.0;
    let operators = found.jobs.iter().filter(|job| job.name == "andreas-operator");
    for (place, _) in operators.flat_map(|job| &job.targets) {
        let text = scrape::text(*place).await?;
        let count = text.lines().find_map(|line| line.strip_prefix("andreas_plan_duration_seconds_count "));
        made += count.and_then(|count| count.trim().parse::<f64>().ok()).unwrap_or(0.0);
    }
    Ok(made as usize)
}

/// What a recorder saved.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Plans that the operator made meanwhile.
    pub made: usize,
    /// A snapshot each.
    pub files: Vec<PathBuf>,
}

impl Recorded {
    /// Plans each snapshot again. Also returns what differs, a line for each plan.
    ///
    /// # Errors
    /// When a snapshot cannot be read or planned, or has no plan beside it.
    pub fn plan_again(&self) -> Result<(SamePlans, Vec<String>)> {
        let mut differ = Vec::new();
        for file in &self.files {
            let found = differences_in(file).with_context(|| file.display().to_string())?;
            if !found.is_empty() {
                differ.push(format!("{}: {}", file.display(), found.join("; ")));
            }
        }
        let again = self.files.len();
        // An operator that was started again counts from 0.
        Ok((SamePlans { made: self.made.max(again), again, same: again - differ.len() }, differ))
    }
}

/// Plans a saved snapshot with the options beside it.
///
/// # Errors
/// When it cannot be read or planned.
pub fn plan_of(text: &[u8]) -> Result<Plan> {
    #[derive(Deserialize)]
    struct Saved {
        _options: Options,
    }
    let snapshot: Snapshot = serde_json::from_slice(text)?;
    let Saved { _options: options } = serde_json::from_slice(text)?;
    Ok(andreas_planner::plan(&snapshot, &options)?)
}

fn differences_in(file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read(file)?;
    let made = serde_json::from_slice::<Value>(&text)?["_plan"].take();
    ensure!(made.is_object(), "no plan beside the snapshot");
    let again = serde_json::to_value(plan_of(&text)?)?;
    let mut found = Vec::new();
    compare(&made, &again, "", &mut found);
    Ok(found)
}

/// Adds the fields in which two plans differ, with both values.
fn compare(made: &Value, again: &Value, at: &str, found: &mut Vec<String>) {
    match (made, again) {
        (Value::Object(made), Value::Object(again)) => {
            let names: BTreeSet<&String> = made.keys().chain(again.keys()).collect();
            for name in names {
                let of = |plan: &serde_json::Map<String, Value>| plan.get(name).cloned().unwrap_or_default();
                compare(&of(made), &of(again), &format!("{at}/{name}"), found);
            }
        }
        _ if made != again => found.push(format!("{at}: {made}, again {again}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    #[test]
    fn plans_of_one_second_are_all_saved_and_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let (stopped, reads) = (AtomicBool::new(false), Cell::new(0_usize));
        let text = |cost: i32| json!({"now": 10.0, "_plan": {"cost": cost}}).to_string();
        let pages = [text(1), text(1), text(2)];
        let read = || {
            let at = reads.replace(reads.get() + 1);
            stopped.store(at + 1 == pages.len(), Ordering::Relaxed);
            Ok((200, pages[at].clone()))
        };
        let files = record(read, folder.path(), &stopped).unwrap();
        let saved: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
        assert_eq!(saved, [text(1), text(2)]);
    }

    #[test]
    fn plans_are_the_same_to_the_last_digit_or_the_field_is_named() {
        let plan = |cost: f64, run: &str| json!({"cost": cost, "jobs": {"a/one": {"decision": {"Run": run}}, "a/two": {"after": []}}});
        let found = |again: &Value| {
            let mut found = Vec::new();
            compare(&plan(0.1 + 0.2, "n1"), again, "", &mut found);
            found
        };
        // What is read from a file is what was written.
        let text = plan(0.1 + 0.2, "n1").to_string();
        assert_eq!(found(&serde_json::from_str(&text).unwrap()), [""; 0]);
        let off = plan(0.3, "n2");
        let named =
            ["/cost: 0.30000000000000004, again 0.3", "/jobs/a/one/decision/Run: \"n1\", again \"n2\""];
        assert_eq!(found(&off), named);
        let mut fewer = plan(0.1 + 0.2, "n1");
        fewer["jobs"].as_object_mut().unwrap().remove("a/two");
        assert_eq!(found(&fewer), ["/jobs/a/two: {\"after\":[]}, again null"]);
    }
}
