//! The program as a person calls it.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn andreas(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-andreas")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn saved(folder: &Path, text: &str) -> String {
    let file = folder.join("snapshot.json");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn what_a_conversion_loses_is_an_exit_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.sbatch");
    let path = file.to_str().unwrap();
    let convert = |script: &str, more: &[&str]| {
        std::fs::write(&file, script).unwrap();
        andreas(&[&["convert", "-f", path], more].concat())
    };
    let whole = convert("#!/bin/sh\n#SBATCH --gpus=1\npython train.py\n", &["--image", "example.org/i"]);
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stderr));
    assert!(text(&whole.stdout).contains("kind: TrainingJob"));
    let lossy = "#!/bin/sh\n#SBATCH --gpus=1 --licenses=a:1\npython train.py\n";
    let lost = convert(lossy, &["--image", "example.org/i"]);
    assert_eq!(lost.status.code(), Some(5));
    assert!(text(&lost.stdout).contains("# lost: --licenses") && text(&lost.stderr).contains("lost: "));
    assert_eq!(convert(lossy, &["--image", "example.org/i", "--allow-loss"]).status.code(), Some(0));
    let array = convert("#!/bin/sh\n#SBATCH --gpus=1 --array=1-5\npython train.py\n", &[]);
    assert!(array.status.code() == Some(1) && text(&array.stderr).contains("for id in $(seq 1 1 5); do"));
    let arguments = convert("#!/bin/sh\n#SBATCH -G1\npython $1\n", &["--image", "i", "--", "train.py"]);
    assert_eq!(arguments.status.code(), Some(0), "{}", text(&arguments.stderr));
    assert!(text(&arguments.stdout).contains("- train.py"), "{}", text(&arguments.stdout));
    let broken = convert("#!/bin/sh\n#SBATCH --gpus=many:x\n", &[]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(text(&broken.stderr).contains(&format!("{path}: line 2: --gpus")), "{}", text(&broken.stderr));
    // What a file holds does not move the terminal's cursor.
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: \"a\\e[2Jb\"}\nspec: {template: 3}\n";
    let escaped = convert(job, &[]);
    assert!(!escaped.stderr.contains(&0x1b) && text(&escaped.stderr).contains("spec.template"));
}

#[test]
fn a_manifest_is_printed_without_a_cluster() {
    let words = ["submit", "one", "--image", "example.org/i", "--dry-run", "--", "torchrun", "train.py"];
    let made = andreas(&words);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(text(&made.stdout).contains("- torchrun"), "{}", text(&made.stdout));
    let named = andreas(&["submit", "one", "--image", "example.org/i", "--dry-run", "-o", "name"]);
    assert_eq!(text(&named.stdout), "trainingjob/one\n");
    for wrong in [["--gpus", "2", "--nodes", "4"], ["--volume", "data", "--gpus", "1"]] {
        let words = ["submit", "one", "--image", "example.org/i", "--dry-run"];
        let refused = andreas(&[&words[..], &wrong[..]].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    }
    assert!(text(&andreas(&["completion", "bash"]).stdout).contains("_kubectl"));
}

#[test]
fn arguments_that_make_no_sense_are_refused_before_anything_is_asked() {
    for (args, says) in [
        (["cancel", "bert#2", "-n", "a"].as_slice(), "\"bert#2\" is no name"),
        (&["suspend", ""], "is empty"),
        (&["queue", "-n", "a/b"], "\"a/b\" is no name"),
        (&["explain", "a?b=c"], "is no name"),
        (&["logs", "a", "--tail", "-1"], "'--tail <LINES>': -1 is not in"),
        (&["submit", "A_b", "--image", "i", "--dry-run"], "at most 48"),
        (&["submit", "a", "--image", "", "--dry-run"], "--image"),
        (&["submit", "a", "--image", "i", "--types", "a,,b", "--dry-run"], "--types"),
        (
            &["submit", "a", "--image", "i", "--volume", "x:/d", "--volume", "y:/d", "--dry-run"],
            "--volume y:/d: another one has this folder",
        ),
        (&["submit", "a", "--image", "i", "--deadline", "9999999999h", "--dry-run"], "--deadline"),
    ] {
        let output = andreas(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

/// Somebody's `2>/dev/full`, or a reader that has gone.
#[test]
fn standard_error_that_cannot_be_written_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = saved(
        folder.path(),
        "kind: Job\napiVersion: batch/v1\nmetadata: {name: a}\nspec: {template: {spec: {containers: [{name: c, image: i}]}}}\n",
    );
    for (args, code) in [(["convert", "-f", &file], 5), (["convert", "-f", "/none"], 1)] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-andreas"));
        assert_eq!(command.args(args).stderr(full).output().unwrap().status.code(), Some(code), "{args:?}");
    }
}
