//! Loss curves that the programs wrote beside their checkpoints.

use std::path::{Path, PathBuf};

use andreas_e2e::cluster::Cluster;
use anyhow::{Context as _, Result};
use serde::Deserialize;

/// One line of a curve.
#[derive(Clone, Debug, Deserialize)]
struct Point {
    step: u64,
    loss: f64,
    processes: i32,
}

/// Losses by step, in the order in which they were written.
pub struct Curve {
    points: Vec<Point>,
    text: String,
}

impl Curve {
    /// The curve of a job in `default`.
    pub async fn of(c: &Cluster, job: &str) -> Result<Self> {
        let path = claimed(c, job, "curve.jsonl").await?;
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let points = text.lines().map(serde_json::from_str).collect::<Result<Vec<Point>, _>>()?;
        Ok(Self { points, text })
    }

    /// Mean of the last twenty points: single batches differ.
    pub fn last_loss(&self) -> Result<f64> {
        let last = &self.points[self.points.len().saturating_sub(20)..];
        anyhow::ensure!(!last.is_empty(), "an empty curve");
        Ok(last.iter().map(|point| point.loss).sum::<f64>() / last.len() as f64)
    }

    /// Numbers of processes, in order.
    pub fn processes(&self) -> Vec<i32> {
        let mut all: Vec<i32> = self.points.iter().map(|point| point.processes).collect();
        all.dedup();
        all
    }

    /// The step at which the number of processes changed or a step came again; none in a run without a stop.
    fn resumed_after(&self) -> Option<u64> {
        let pairs = self.points.windows(2);
        pairs
            .filter(|pair| pair[1].processes != pair[0].processes || pair[1].step <= pair[0].step)
            .map(|pair| pair[0].step)
            .next()
    }
}

/// A file beside the checkpoints of a job in `default`.
pub async fn claimed(c: &Cluster, job: &str, file: &str) -> Result<PathBuf> {
    let uid = c.kubectl(&format!("get pvc {job}-checkpoint -o jsonpath={{.metadata.uid}}")).await?;
    Ok(c.testbed.data_dir().join("claims").join(uid.trim()).join(file))
}

fn results() -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/frameworks/results");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Keeps what was seen, for docs/frameworks.md.
pub fn save_transcript(name: &str, transcript: &str, with: &Curve, without: &Curve) -> Result<()> {
    let folder = results()?;
    let resumed =
        with.resumed_after().map_or_else(|| "never".to_owned(), |step| format!("after step {step}"));
    let summary = format!(
        "{transcript}\nresumed {resumed}; loss at the end {:.6}, without a stop {:.6}\n",
        with.last_loss()?,
        without.last_loss()?
    );
    println!("{summary}");
    std::fs::write(folder.join(format!("{name}.txt")), summary)?;
    std::fs::write(folder.join(format!("{name}.jsonl")), &with.text)?;
    std::fs::write(folder.join(format!("{name}-whole.jsonl")), &without.text)?;
    Ok(())
}
