//! Given custom resources, reasons, the command line and the chart's values; when the pages of docs/reference are
//! compared with what is written from them; then they are the same. No cluster is needed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use andreas_api::phase::Reason;
use anyhow::{Context as _, Result, ensure};
use clap::CommandFactory as _;
use serde_json::Value;

const KINDS: [(&str, &str); 5] = [
    ("TrainingJob", "trainingjobs"),
    ("TrainingProfile", "trainingprofiles"),
    ("EnergyPolicy", "energypolicies"),
    ("GpuNode", "gpunodes"),
    ("NodePower", "nodepowers"),
];
/// Fields that Kubernetes' own reference describes.
const KUBERNETES: [&str; 1] = [".spec.template"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| path.to_owned())
}

/// One cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}

fn head(title: &str) -> String {
    format!("# {title}\n\n<!-- Written by a program; refresh it with: make generate WHAT=reference -->\n\n")
}

/// What a field may hold, in few words.
fn kind_of(schema: &Value) -> String {
    // Of several types the first: the other is null.
    let text = |key: &str| match &schema[key] {
        Value::Array(all) => all.first().and_then(Value::as_str),
        one => one.as_str(),
    };
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{}`", plain(value))).collect();
        return values.join(", ");
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return "number or text".into();
    }
    let (least, most) = (&schema["minimum"], &schema["maximum"]);
    match (text("type"), text("format")) {
        (Some("integer" | "number"), _) if least.is_number() || most.is_number() => match (least, most) {
            (least, Value::Null) => format!("number, at least {least}"),
            (Value::Null, most) => format!("number, at most {most}"),
            (least, most) => format!("number, {least} to {most}"),
        },
        (Some("integer" | "number"), _) => "number".into(),
        (Some("string"), Some("date-time")) => "time".into(),
        (Some("string"), _) => "text".into(),
        (Some("boolean"), _) => "true or false".into(),
        (Some("array"), _) => {
            let most = schema["maxItems"].as_u64().map_or(String::new(), |most| format!(", at most {most}"));
            format!("list{most}")
        }
        (Some("object"), _) if schema["additionalProperties"].is_object() => "map".into(),
        (Some("object"), _) => "object".into(),
        _ => String::new(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Rows of an object's fields and of the fields below them.
fn fields(schema: &Value, path: &str, rows: &mut String) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let mut kind = kind_of(field);
        if required.contains(&name.as_str()) {
            kind += ", required";
        }
        // An object's default is that of its fields.
        let default = match &field["default"] {
            Value::Null | Value::Object(_) => String::new(),
            value => format!("`{}`", plain(value)),
        };
        let mut text = field["description"].as_str().unwrap_or_default().to_owned();
        for rule in field["x-kubernetes-validations"].as_array().into_iter().flatten() {
            if let Some(message) = rule["message"].as_str() {
                let _ = write!(text, " *{message}.*");
            }
        }
        let _ =
            writeln!(rows, "| `{}` | {kind} | {default} | {} |", path.trim_start_matches('.'), cell(&text));
        if KUBERNETES.contains(&path.as_str()) {
            continue;
        }
        fields(field, &path, rows);
        fields(&field["items"], &format!("{path}[]"), rows);
        fields(&field["additionalProperties"], &format!("{path}.*"), rows);
    }
}

fn resource(kind: &str, plural: &str) -> Result<String> {
    let crd: Value =
        serde_saphyr::from_str(&read(&format!("charts/andreas/files/crds/andreas.dev_{plural}.yaml"))?)?;
    let version = &crd["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let mut text = head(kind);
    let names = &crd["spec"]["names"];
    let short: Vec<&str> =
        names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let _ = writeln!(
        text,
        "{}\n\n`apiVersion: andreas.dev/{}`, {}; `kubectl get {}` (`{}`).\n",
        plain(&schema["description"]),
        plain(&version["name"]),
        plain(&crd["spec"]["scope"]).to_lowercase(),
        plain(&names["plural"]),
        short.join("`, `")
    );
    text += "## Columns\n\n`wide`: shown by `kubectl get -o wide` only.\n\n| column | field | what it shows |\n|---|---|---|\n";
    for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
        let wide = if column["priority"].as_i64().unwrap_or(0) > 0 { " (wide)" } else { "" };
        let (name, path) = (plain(&column["name"]), plain(&column["jsonPath"]));
        let path = path.trim_start_matches('.');
        let _ = writeln!(
            text,
            "| {}{wide} | `{path}` | {} |",
            name.to_uppercase(),
            cell(&plain(&column["description"]))
        );
    }
    for part in ["spec", "status"] {
        let schema = &schema["properties"][part];
        if !schema.is_object() {
            continue;
        }
        let _ = write!(text, "\n## {part}\n\n{}\n", schema["description"].as_str().unwrap_or_default());
        let messages: Vec<&str> = schema["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|rule| rule["message"].as_str())
            .collect();
        if !messages.is_empty() {
            text += "\nRules over several fields:\n\n";
            for message in messages {
                let _ = writeln!(text, "* {}", cell(message));
            }
        }
        text += "\n| field | type | default | what it is |\n|---|---|---|---|\n";
        fields(schema, &format!(".{part}"), &mut text);
    }
    Ok(text)
}

/// Reasons with the comments of the code.
fn reasons() -> Result<String> {
    let code = read("crates/api/src/phase.rs")?;
    let list = code.split_once("pub enum Reason {").context("the list of reasons")?.1;
    let list = list.split_once("\n    }").context("its end")?.0;
    let (mut texts, mut text) = (BTreeMap::new(), String::new());
    for line in list.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("/// ") {
            text = format!("{text} {comment}");
        } else if let Some(name) = line.strip_suffix(',') {
            texts.insert(name.to_owned(), std::mem::take(&mut text));
        }
    }
    let mut page = head("Reasons");
    page += "Every value of `status.reason` and of a condition's `reason`. [What to do](../lifecycle.md#why-is-it-waiting-why-did-it-stop),\n\
             [troubleshooting](../troubleshooting.md).\n\n| reason | what it says |\n|---|---|\n";
    for reason in Reason::ALL {
        let text =
            texts.get(reason.as_str()).with_context(|| format!("no comment of {}", reason.as_str()))?;
        let _ = writeln!(page, "| `{}` | {} |", reason.as_str(), cell(text));
    }
    ensure!(texts.len() == Reason::ALL.len(), "{} comments of {} reasons", texts.len(), Reason::ALL.len());
    Ok(page)
}

/// What `--help` prints, of the program and of every command.
fn command_line() -> String {
    fn page(command: &mut clap::Command, name: &str, depth: usize, text: &mut String) {
        let help = command.clone().bin_name(name).term_width(96).render_long_help().to_string();
        let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        let _ = write!(text, "\n{} {name}\n\n```text\n{}\n```\n", "#".repeat(depth), help.join("\n"));
        let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
        for below in below {
            if let Some(found) = command.find_subcommand_mut(&below) {
                page(found, &format!("{name} {below}"), (depth + 1).min(4), text);
            }
        }
    }
    let mut text = head("Command line");
    text += "What `kubectl-andreas --help` prints. On the PATH it is also `kubectl andreas`.\n";
    page(&mut andreas_cli::Cli::command(), "kubectl-andreas", 2, &mut text);
    text
}

/// The comment above each key of a YAML file, by path.
fn comments(text: &str) -> BTreeMap<String, String> {
    let (mut found, mut path, mut comment) = (BTreeMap::new(), Vec::<(usize, String)>::new(), String::new());
    for line in text.lines() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if let Some(text) = code.strip_prefix("# ") {
            comment = format!("{comment} {text}");
        } else if let Some((key, _)) =
            code.split_once(':').filter(|(key, _)| !key.contains([' ', '-', '{', '"']))
        {
            path.retain(|(column, _)| *column < indent);
            path.push((indent, key.to_owned()));
            let name: Vec<&str> = path.iter().map(|(_, key)| key.as_str()).collect();
            found.insert(name.join("."), std::mem::take(&mut comment).trim().to_owned());
        } else {
            comment.clear();
        }
    }
    found
}

fn values() -> Result<String> {
    fn rows(
        schema: &Value,
        all: &Value,
        defaults: &Value,
        comments: &BTreeMap<String, String>,
        path: &str,
        text: &mut String,
    ) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let used = field["$ref"]
                .as_str()
                .and_then(|to| all.pointer(to.trim_start_matches('#')))
                .unwrap_or(field);
            let default = &defaults[name];
            let said = field["description"].as_str().or_else(|| comments.get(&path).map(String::as_str));
            let below = used["properties"].as_object().is_some_and(|below| !below.is_empty());
            if !below || said.is_some_and(|said| !said.is_empty()) {
                let shown = match default {
                    Value::Null => String::new(),
                    Value::Object(_) | Value::Array(_) if below || default.to_string().len() > 60 => {
                        String::new()
                    }
                    value => format!("`{}`", serde_json::to_string(value).unwrap_or_default()),
                };
                let _ = writeln!(
                    text,
                    "| `{path}` | {} | {shown} | {} |",
                    kind_of(used),
                    cell(said.unwrap_or_default())
                );
            }
            rows(used, all, default, comments, &path, text);
        }
    }
    let schema: Value = serde_json::from_str(&read("charts/andreas/values.schema.json")?)?;
    let file = read("charts/andreas/values.yaml")?;
    let defaults: Value = serde_saphyr::from_str(&file)?;
    let mut text = head("Values of the chart");
    text += "Every value of [`values.yaml`](../../charts/andreas/values.yaml). The schema refuses all others. Which ones many clusters\n\
             need: [installation](../installation.md#install).\n\n| value | type | default | what it does |\n|---|---|---|---|\n";
    rows(&schema, &schema, &defaults, &comments(&file), "", &mut text);
    Ok(text)
}

fn index() -> String {
    let mut text = head("Reference");
    text += "| page | what |\n|---|---|\n";
    for (kind, _) in KINDS {
        let _ = writeln!(text, "| [{kind}]({}.md) | fields, defaults, columns |", kind.to_lowercase());
    }
    text += "| [Reasons](reasons.md) | why a job waits, runs or ended |\n\
             | [Command line](cli.md) | `kubectl-andreas` |\n\
             | [Values of the chart](values.md) | what helm takes |\n\
             | [Metrics](../metrics.md) | what Prometheus reads |\n\
             | [Environment of a training container](../lifecycle.md#contract-for-the-training-container) | what a program is given |\n";
    text
}

#[test]
fn the_reference_is_that_of_the_code() -> Result<()> {
    let mut pages = vec![
        ("README".to_owned(), index()),
        ("reasons".to_owned(), reasons()?),
        ("cli".to_owned(), command_line()),
        ("values".to_owned(), values()?),
    ];
    for (kind, plural) in KINDS {
        pages.push((kind.to_lowercase(), resource(kind, plural)?));
    }
    let mut stale = Vec::new();
    for (name, wanted) in pages {
        let path = root().join(format!("docs/reference/{name}.md"));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &wanted)?;
        }
        if std::fs::read_to_string(&path).unwrap_or_default() != wanted {
            stale.push(name);
        }
    }
    ensure!(
        stale.is_empty(),
        "stale in docs/reference: {}; refresh them with: make generate WHAT=reference",
        stale.join(", ")
    );
    Ok(())
}

#[test]
fn fields_are_listed_with_their_paths_types_and_rules() {
    let schema = serde_json::json!({
        "required": ["a"],
        "properties": {
            "a": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3, "description": "x | y"},
            "b": {"type": "array", "maxItems": 2, "items": {"properties": {"c": {"type": "string", "format": "date-time"}}},
                  "x-kubernetes-validations": [{"message": "not twice"}]},
        },
    });
    let mut rows = String::new();
    fields(&schema, ".spec", &mut rows);
    let wanted = "| `spec.a` | number, 1 to 9, required | `3` | x \\| y |\n\
                  | `spec.b` | list, at most 2 |  | *not twice.* |\n\
                  | `spec.b[].c` | time |  |  |\n";
    assert_eq!(rows, wanted);
}

#[test]
fn a_comment_belongs_to_the_key_below_it() {
    let found = comments("# of a\n# and more\na:\n  # of b\n  b: 1\n  c: 2\n# of d\nd: {}\n");
    assert_eq!(found["a"], "of a and more");
    assert_eq!((found["a.b"].as_str(), found["a.c"].as_str(), found["d"].as_str()), ("of b", "", "of d"));
}
