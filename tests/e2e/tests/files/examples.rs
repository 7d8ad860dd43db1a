//! The examples in `deploy/examples` say only what the API knows.

use std::path::Path;

use andreas_api::{EnergyPolicy, TrainingJob, TrainingProfile};
use serde_json::Value;

/// Every field of `said` is in `kept`, with the same value: nothing was misspelt and dropped.
fn kept(said: &Value, kept_: &Value, path: &str) {
    match said {
        Value::Object(fields) => {
            for (name, value) in fields {
                let there =
                    kept_.get(name).unwrap_or_else(|| panic!("{path}.{name} is not a field of the API"));
                kept(value, there, &format!("{path}.{name}"));
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                kept(item, &kept_[i], &format!("{path}[{i}]"));
            }
        }
        _ => assert_eq!(said, kept_, "{path}"),
    }
}

/// The object's kind; panics where a field is not the API's.
fn known(object: &Value, place: &str) -> String {
    let kind = object["kind"].as_str().unwrap().to_owned();
    let typed = match kind.as_str() {
        "TrainingJob" => serde_json::to_value(serde_json::from_value::<TrainingJob>(object.clone()).unwrap()),
        "TrainingProfile" => {
            serde_json::to_value(serde_json::from_value::<TrainingProfile>(object.clone()).unwrap())
        }
        "EnergyPolicy" => {
            serde_json::to_value(serde_json::from_value::<EnergyPolicy>(object.clone()).unwrap())
        }
        _ => Ok(object.clone()),
    };
    let mut said = object.clone();
    // `status` and the kind itself are not part of the types' own JSON.
    said.as_object_mut().unwrap().retain(|k, _| k == "spec");
    // An absent switch and its default are the same: what is false or empty is not written back.
    kept(&said, &typed.unwrap(), place);
    kind
}

#[test]
fn every_object_of_every_page_is_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs", "docs/howto"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    let mut objects = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
        for block in blocks
            .filter(|block| block.starts_with("apiVersion: andreas.dev/") && !block.contains("  apiVersion:"))
        {
            let object: Value = serde_saphyr::from_str(block).unwrap();
            known(&object, &page.display().to_string());
            objects += 1;
        }
    }
    assert!(objects >= 3, "only {objects}");
}

#[test]
fn every_field_of_every_example_is_known() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples");
    let mut kinds = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for object in objects {
            kinds.push(known(&object, &name));
        }
    }
    for kind in ["TrainingJob", "TrainingProfile", "EnergyPolicy", "PersistentVolumeClaim"] {
        assert!(kinds.iter().any(|k| k == kind), "no example of a {kind}");
    }
}

/// An image under our name can be built from this repository.
#[test]
fn every_image_of_ours_in_an_example_has_a_dockerfile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut images = 0;
    for entry in std::fs::read_dir(root.join("deploy/examples")).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for image in text.lines().filter_map(|line| line.trim().strip_prefix("image: andreas.dev/")) {
            let name = image.split(':').next().unwrap();
            assert!(root.join(format!("deploy/docker/{name}.Dockerfile")).exists(), "{image}");
            images += 1;
        }
    }
    assert!(images > 0);
}

/// Who builds images and pushes them as the page on builds says has all that the chart asks for.
#[test]
fn every_image_of_ours_in_the_chart_has_a_dockerfile_and_is_pushed_by_the_page_on_builds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let (values, page) = (read("charts/andreas/values.yaml"), read("docs/build.md"));
    let pushed: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("push ")?.split_once(' '))
        .map(|(part, image)| (part, image.split(':').next().unwrap()))
        .collect();
    let repositories = values.lines().filter_map(|line| line.trim().strip_prefix("repository: "));
    let ours: Vec<&str> = repositories.filter(|name| *name != "kube-scheduler").collect();
    assert_eq!(pushed.iter().map(|(_, image)| *image).collect::<Vec<_>>(), ours);
    for (part, _) in pushed {
        assert!(root.join(format!("deploy/docker/{part}.Dockerfile")).exists(), "{part}");
    }
}
