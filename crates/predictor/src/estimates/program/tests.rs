use super::*;

fn of(name: &str, line: &str, owner: Option<(&str, &str)>, environment: &[(&str, &str)]) -> Program {
    let command = line.split(' ').collect();
    RunDescription { name, owner, image: "lab/train:2", command, environment: environment.to_vec() }.program()
}

#[test]
fn names_seeds_and_suffixes_do_not_distinguish_and_models_do() {
    let one = of(
        "bert-x7",
        "python t.py --model bert --seed 1 --out /o/bert-x7",
        Some(("Trial", "s-x7k2p")),
        &[("SEED", "1")],
    );
    let other = of(
        "bert-b2",
        "python t.py --model bert --seed 2 --out /o/bert-b2",
        Some(("Trial", "s-b2c4d")),
        &[("SEED", "2")],
    );
    assert_eq!(one, other);
    let owner = Some(("Trial", "s-x7k2p"));
    for different in [
        of("bert-x7", "python t.py --model gpt --seed 1", owner, &[]),
        of("bert-x7", "python t.py --model bert --seed 1", Some(("Trial", "other")), &[]),
        of("bert-x7", "python t.py --model bert --seed 1", owner, &[("DATA", "x")]),
    ] {
        assert_ne!(different.profile, one.profile, "{different:?}");
    }
}

#[test]
fn a_switch_leaves_the_script_and_the_model_that_follow_it() {
    let profile = |line: &str| of("a", line, None, &[]).profile;
    for (one, other) in [
        ("python -O bert.py", "python -O gpt.py"),
        ("python -v bert.py", "python -v gpt.py"),
        ("python t.py --verbose resnet50", "python t.py --verbose vit"),
        ("python t.py --use-wandb small.yaml", "python t.py --use-wandb huge.yaml"),
        ("torchrun t.py --log-wandb /imagenet", "torchrun t.py --log-wandb /coco"),
        ("python t.py --wandb resnet50", "python t.py --wandb vit"),
        ("python t.py --wandb-offline resnet50", "python t.py --wandb-offline vit"),
    ] {
        assert_ne!(profile(one), profile(other), "{one}, {other}");
    }
    for (one, other) in [
        ("python t.py -v 1 vit", "python t.py -v 2 vit"),
        ("python t.py --verbose vit", "python t.py vit"),
        ("python t.py -o /a vit", "python t.py -o /b vit"),
        ("python t.py --use-wandb vit", "python t.py vit"),
        ("python t.py --use_wandb True vit", "python t.py --use_wandb False vit"),
        ("python t.py --wandb_project a vit", "python t.py --wandb_project b vit"),
        ("python t.py --tensorboard-log /a vit", "python t.py --tensorboard-log /b vit"),
    ] {
        assert_eq!(profile(one), profile(other), "{one}, {other}");
    }
}

#[test]
fn a_job_named_after_its_model_or_script_has_a_program_of_its_own() {
    let profile = |name: &str, line: &str| of(name, line, None, &[]).profile;
    for (one, other, line) in [
        ("resnet50", "vit-huge", "torchrun t.py --model NAME"),
        ("bert", "llama", "python NAME.py"),
        ("phi-1", "phi-2", "accelerate launch t.py --model_name_or_path microsoft/NAME"),
        ("gpt2-xl", "gpt2-large", "python t.py model=NAME"),
        ("coco-2014", "coco-2017", "deepspeed t.py --data /data/NAME"),
        ("bert-x7k2p", "gpt-b2c4d", "python t.py --config /config/NAME.yaml"),
    ] {
        let (first, second) = (line.replace("NAME", one), line.replace("NAME", other));
        assert_ne!(profile(one, &first), profile(other, &second), "{first}, {second}");
    }
    let line = "python t.py --title bert-x7k2p --store /x/bert-x7k2p/last";
    let again = line.replace("x7k2p", "b2c4d");
    assert_eq!(profile("bert-x7k2p", line), profile("bert-b2c4d", &again));
}

#[test]
fn a_program_does_not_depend_on_the_name_of_an_owner_that_has_the_jobs() {
    let owned = |name: &str| of(name, "python t.py", Some(("Trial", name)), &[]).profile;
    assert_eq!(owned("sweep-17"), owned("sweep-18"));
}

#[test]
fn names_and_folders_are_those_of_a_run_only_in_its_sections() {
    let profile = |line: &str| of("a", line, None, &[]).profile;
    for (one, other) in [
        ("python t.py model.name=resnet50", "python t.py model.name=vit_h"),
        ("python t.py +data.dir=/d/cifar", "python t.py +data.dir=/d/imagenet"),
        ("t.py fit --model.name resnet50", "t.py fit --model.name vit_h"),
        ("t.py fit --data.init_args.dir /a", "t.py fit --data.init_args.dir /b"),
        ("torchrun t.py --model.name=llama3", "torchrun t.py --model.name=flux"),
        ("python t.py model.checkpoint=bert", "python t.py model.checkpoint=gpt"),
        ("python t.py experiment.model.name=a", "python t.py experiment.model.name=b"),
    ] {
        assert_ne!(profile(one), profile(other), "{one}, {other}");
    }
    for (one, other) in [
        ("python t.py hydra.run.dir=/runs/a", "python t.py hydra.run.dir=/runs/b"),
        ("python t.py logger.name=a", "python t.py logger.name=b"),
        ("python t.py exp_manager.name=a", "python t.py exp_manager.name=b"),
        (
            "python t.py exp_manager.wandb_logger_kwargs.project=a",
            "python t.py exp_manager.wandb_logger_kwargs.project=b",
        ),
        ("t.py fit --trainer.logger.init_args.name a", "t.py fit --trainer.logger.init_args.name b"),
        ("python t.py name=a optimizer.momentum=0.9", "python t.py name=b optimizer.momentum=0.8"),
    ] {
        assert_eq!(profile(one), profile(other), "{one}, {other}");
    }
}
