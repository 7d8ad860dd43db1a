use andreas_predictor::estimates::MAX_DESCRIPTION;
use serde_json::{Value, json};

use super::*;

fn job(name: &str, container: Value) -> SlimTrainingJob {
    let mut container = container;
    container["name"] = json!("train");
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }))
    .expect("a job")
}

/// The profile of a run of a command line in one image.
fn profile(name: &str, line: &str) -> String {
    let words = shlex::split(line).expect("a command line");
    program(&job(name, json!({"image": "ghcr.io/lab/train:2.3", "command": words})))
        .expect("a program")
        .profile
}

/// Command lines of published training scripts, each with another run of the same program.
const SAME: &[(&str, &str)] = &[
    // transformers, examples/pytorch/language-modeling
    (
        "torchrun run_clm.py --model_name_or_path gpt2 --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 \
         --per_device_train_batch_size 8 --do_train --output_dir /tmp/test-clm --learning_rate 5e-5 --seed 1",
        "torchrun run_clm.py --model_name_or_path gpt2 --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 \
         --per_device_train_batch_size 8 --do_train --output_dir /ckpt/run-17 --learning_rate 3e-4 --seed 42",
    ),
    // pytorch/examples, imagenet
    (
        "python main.py -a resnet50 --lr 0.1 --epochs 90 --dist-url tcp://127.0.0.1 --multiprocessing-distributed /data/imagenet",
        "python main.py -a resnet50 --lr 0.05 --epochs 30 --dist-url tcp://127.0.0.1 --multiprocessing-distributed /data/imagenet",
    ),
    // timm
    (
        "torchrun --nproc-per-node=4 train.py /imagenet --model convnext_tiny -b 128 --lr=4e-3 --warmup-epochs 20 --experiment first --output ./out",
        "torchrun --nproc-per-node=8 train.py /imagenet --model convnext_tiny -b 128 --lr=1e-3 --warmup-epochs 5 --experiment second --output ./out2",
    ),
    // nanoGPT: configuration file and overrides
    (
        "python train.py config/train_gpt2.py --batch_size=12 --out_dir=out-1 --wandb_run_name=gpt2-a --compile=True",
        "python train.py config/train_gpt2.py --batch_size=12 --out_dir=out-2 --wandb_run_name=gpt2-b --compile=True",
    ),
    // Hydra
    (
        "python train.py model=vit optimizer.lr=0.001 +trainer.max_epochs=10 seed=1 hydra.run.dir=/runs/2026-01-05/10-00-00",
        "python train.py model=vit optimizer.lr=0.01 +trainer.max_epochs=20 seed=2 hydra.run.dir=/runs/2026-02-07/12-30-01",
    ),
    // detectron2
    (
        "python tools/train_net.py --config-file configs/mask_rcnn_R_50.yaml --num-gpus 8 SOLVER.IMS_PER_BATCH 16 OUTPUT_DIR /out/20260105-101500",
        "python tools/train_net.py --config-file configs/mask_rcnn_R_50.yaml --num-gpus 4 SOLVER.IMS_PER_BATCH 16 OUTPUT_DIR /out/20260207-123001",
    ),
    // a shell in between, data under a generated name, negative and missing values
    (
        "bash -lc 'exec python -m speech.train --data /data/a1b2c3d4e5 --shift -0.5 --beta1 -1 --resume --amp'",
        "bash -lc 'exec python -m speech.train --data /data/0f9e8d7c6b --shift -0.5 --beta1 0.9 --resume --amp'",
    ),
    (
        "python t.py --id 0e4f6c1a-93ba-4be4-8f10-7a2f3a5a1f00",
        "python t.py --id 93be7a10-1111-4be4-8f10-0123456789ab",
    ),
];

#[test]
fn runs_of_one_program_share_a_profile() {
    for (one, other) in SAME {
        assert_eq!(profile("a-run", one), profile("another", other), "{one}\n{other}");
    }
}

#[test]
fn other_models_data_and_batches_are_other_programs() {
    let lines = [
        "torchrun run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 8",
        "torchrun run_clm.py --model_name_or_path gpt2-xl --per_device_train_batch_size 8",
        "torchrun run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 16",
        "torchrun run_mlm.py --model_name_or_path gpt2 --per_device_train_batch_size 8",
        "python main.py -a resnet50 /data/imagenet",
        "python main.py -a resnet18 /data/imagenet",
        "python main.py -a resnet50 /data/coco-2017",
        "python main.py -a resnet50 /data/coco-2014",
        "python train.py --batch-tokens 524288",
        "python train.py --batch-tokens 1048576",
        "python train.py --image-size 224",
        "python train.py --image-size 384",
    ];
    let profiles: std::collections::BTreeSet<String> =
        lines.iter().map(|line| profile("run", line)).collect();
    assert_eq!(profiles.len(), lines.len());
}

#[test]
fn images_environments_and_owners_distinguish_programs_too() {
    let with = |image: &str, env: Value| {
        program(&job("run", json!({"image": image, "args": ["--fast"], "env": env})))
            .expect("a program")
            .profile
    };
    let base = with("lab/bert:2.3", json!([{"name": "MODEL", "value": "base"}]));
    let seeded = json!([{"name": "SEED", "value": "3"}, {"name": "WANDB_RUN_ID", "value": "x"}, {"name": "MODEL", "value": "base"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    assert_eq!(with("lab/bert:2.3@sha256:00ff", seeded), base);
    assert_ne!(with("lab/bert:2.3", json!([{"name": "MODEL", "value": "large"}])), base);
    assert_ne!(with("lab/resnet:2.3", json!([{"name": "MODEL", "value": "base"}])), base);
    let tagged = |tag: &str| with(&format!("registry:5000/lab/bert:{tag}"), json!([]));
    assert_eq!(tagged("main-3f9a1c2"), tagged("main-77b0e4d"));
    assert_ne!(tagged("v1"), tagged("v2"));

    let owned = |owner: &str| {
        let mut job = job("run", json!({"image": "i"}));
        let owner =
            json!([{"apiVersion": "v1", "kind": "Trial", "name": owner, "uid": "u", "controller": true}]);
        job.metadata.owner_references = serde_json::from_value(owner).expect("owners");
        program(&job).expect("a program").profile
    };
    assert_eq!(owned("search-x7k2p"), owned("search-b2c4d"));
    assert_ne!(owned("search-x7k2p"), owned("other-x7k2p"));
}

#[test]
fn a_profiles_name_can_be_read_and_is_a_name_of_kubernetes() {
    assert!(profile("run", "python /src/Run_CLM.py --x").starts_with("run-clm-"));
    assert!(profile("run", "python -m speech.train").starts_with("speech-train-"));
    assert!(profile("run", "./binary").starts_with("train-"), "by the image");
    let odd =
        program(&job("run", json!({"image": "x/ÄÖ@sha256:1", "args": [format!("{}.py", "é".repeat(900))]})));
    let odd = odd.expect("a program");
    assert!(
        odd.profile.len() <= 63 && odd.profile.starts_with(|c: char| c.is_ascii_alphanumeric()),
        "{odd:?}"
    );
    assert!(odd.description.len() <= MAX_DESCRIPTION);
    assert_eq!(program(&job("run", json!({}))).map(|p| p.profile.len() > 10), Some(true), "without any word");
}

#[test]
fn the_generated_suffix_of_the_jobs_own_name_is_no_part_of_its_program() {
    assert_eq!(
        profile("bert-x7k2p", "train --save-to /x/bert-x7k2p"),
        profile("bert-b2c4d", "train --save-to /x/bert-b2c4d")
    );
    assert_eq!(
        profile("bert-17", "train --save-dir /x/bert-17"),
        profile("bert-18", "train --save-dir /x/bert-18"),
        "an output folder"
    );
}
