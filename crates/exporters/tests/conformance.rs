//! What every row of the registry must bear: defaults, a bad configuration, an empty batch, the
//! wrong kind of batch, two shutdowns, and a restart on what the one before has let go of.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{collections::BTreeMap, time::Duration};

use support::context;
use wattpipe_exporters::{EXPORTERS, testing::Usage};
use wattpipe_pipeline::{
    BatchKind, Exporter,
    registry::{ExporterEntry, Factory},
    testing::SwitchesBuilder,
};

/// Keys that an exporter needs here: a file to write, a port nobody has.
fn settings(entry: &ExporterEntry, directory: &std::path::Path) -> BTreeMap<String, String> {
    let (key, value) = match entry.name {
        "file" => ("path", directory.join("out").display().to_string()),
        "prometheus" => ("endpoint", "127.0.0.1:0".to_owned()),
        "otlp_grpc" => ("endpoint", "127.0.0.1:9".to_owned()),
        "otlp_http" => ("endpoint", "http://127.0.0.1:9".to_owned()),
        _ => return BTreeMap::new(),
    };
    BTreeMap::from([(key.to_owned(), value)])
}

fn parse(
    entry: &ExporterEntry,
    settings: &BTreeMap<String, String>,
) -> Result<Box<dyn Factory<dyn Exporter>>, String> {
    let value = figment::value::Value::serialize(settings).unwrap();
    (entry.parse)(&value).map_err(|problems| format!("{problems:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_exporter() {
    for entry in EXPORTERS {
        let dir = tempfile::tempdir().unwrap();
        let good = settings(entry, dir.path());
        let factory = parse(entry, &good).unwrap();
        assert!(!factory.takes().is_empty(), "{}", entry.name);
        assert!(factory.effective().is_object(), "{}", entry.name);

        let mut bad = good.clone();
        bad.insert("no_such_key".into(), "1".into());
        let problems = parse(entry, &bad).err().unwrap();
        assert!(problems.contains("no_such_key"), "{}: {problems}", entry.name);

        for _ in 0..2 {
            let mut exporter = factory.build(&context(entry.name)).unwrap();
            exporter.start().await.unwrap();
            exporter.export(Usage::window(0, 1_000_000_000).batch()).await.unwrap();
            exporter.export(SwitchesBuilder::new().topology(1).edge(5)).await.unwrap();
            exporter.shutdown(Duration::from_millis(200)).await.unwrap();
            exporter.shutdown(Duration::from_millis(200)).await.unwrap();
        }
    }
}

#[test]
fn kinds_are_as_the_format_wants() {
    for entry in EXPORTERS {
        let recording = entry.takes.contains(&BatchKind::Switches);
        assert_eq!(recording, entry.name == "file");
    }
}

#[test]
fn secrets_are_not_shown() {
    for name in ["otlp_grpc", "otlp_http"] {
        let entry = EXPORTERS.iter().find(|e| e.name == name).unwrap();
        let headers = BTreeMap::from([("authorization", "s3cret")]);
        let value =
            figment::value::Value::serialize(BTreeMap::from([("headers", headers)])).unwrap();
        let factory = (entry.parse)(&value).map_err(|p| format!("{p:?}")).unwrap();
        let shown = factory.effective().to_string();
        assert!(shown.contains("[REDACTED]") && !shown.contains("s3cret"), "{shown}");
    }
}
