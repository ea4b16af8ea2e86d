//! Writes a scenario as a recording, with its truth beside it: `scenario-3.jsonl` replays through
//! the program, `scenario-3.truth.json` says who drew what.

use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use wattpipe_pipeline::{batch::SwitchBatch, recording};

use crate::sim::Sim;

/// A recording being written.
pub struct Recording {
    out: BufWriter<File>,
    truth: PathBuf,
}

impl Recording {
    pub fn create(dir: &Path, scenario: u32) -> Result<Self, String> {
        fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        let path = dir.join(format!("scenario-{scenario}.jsonl"));
        let out = File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let truth = dir.join(format!("scenario-{scenario}.truth.json"));
        Ok(Self { out: BufWriter::new(out), truth })
    }

    pub fn write(&mut self, batch: &SwitchBatch) -> Result<(), String> {
        recording::for_each_record(batch, |record| {
            serde_json::to_writer(&mut self.out, record)?;
            self.out.write_all(b"\n").map_err(serde_json::Error::io)
        })
        .map_err(|e| e.to_string())
    }

    pub fn finish(mut self, sim: &Sim) -> Result<(), String> {
        self.out.flush().map_err(|e| e.to_string())?;
        let names: Vec<_> = sim.workloads.iter().map(|w| w.name).collect();
        let blocks: Vec<_> = sim
            .truth
            .iter()
            .map(|block| {
                let zones = block.zones.iter().zip(&sim.zones);
                zones
                    .map(|((floor, active), zone)| {
                        serde_json::json!({ "zone": &*zone.name, "idle": floor, "active": active })
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
        let truth = serde_json::json!({
            "block_seconds": crate::sim::BLOCK / crate::sim::SECOND,
            "workloads": names,
            "blocks": blocks,
        });
        fs::write(&self.truth, truth.to_string()).map_err(|e| e.to_string())
    }
}
