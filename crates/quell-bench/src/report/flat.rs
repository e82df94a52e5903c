//! Results as one flat table, a row for each run, side and tenant, as CSV and as Parquet: for spreadsheets,
//! notebooks and databases, which nested JSON does not suit.
//!
//! There is one schema for every command (docs/reference/json.md): a value that a command or a run does not
//! have is null in its rows, never zero. Columns are built once and written as either format.

use crate::result::{BenchResult, Figures, Run, SchedulingFigures, TenantRun};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};
use quell_model::config::TenantClass;
use std::io::Write;
use std::sync::Arc;

/// A result, and its place among several.
#[derive(Debug, Clone, Copy)]
pub struct Point<'a> {
    /// What was measured.
    pub result: &'a BenchResult,
    /// The number of copies or tenants, where the result is a point of a capacity.
    pub number: Option<u32>,
    /// The consolidation ratio, where the result is a point of a reproduced figure.
    pub ratio: Option<f64>,
}

impl<'a> Point<'a> {
    /// A result that stands alone.
    pub fn of(result: &'a BenchResult) -> Point<'a> {
        Point {
            result,
            number: None,
            ratio: None,
        }
    }
}

/// The flat table.
#[derive(Debug, Clone, PartialEq)]
pub struct Flat {
    columns: Vec<Column>,
}

#[derive(Debug, Clone, PartialEq)]
struct Column {
    name: String,
    values: Values,
}

/// A column's values, from the first row on.
#[derive(Debug, Clone, PartialEq)]
enum Values {
    Text(Vec<Option<String>>),
    Whole(Vec<Option<u64>>),
    Real(Vec<Option<f64>>),
}

#[derive(Clone, Copy)]
struct Row<'a> {
    point: Point<'a>,
    run: &'a Run,
    tenant: &'a TenantRun,
}

impl<'a> Row<'a> {
    fn figures(&self) -> &'a Figures {
        &self.tenant.figures
    }

    fn scheduling(&self) -> Option<&'a SchedulingFigures> {
        self.tenant.figures.scheduling.as_ref()
    }
}

impl Flat {
    /// A row for every tenant in every run of every point. `keys` become columns of their own, before the
    /// others, that have each key's setting.
    pub fn new<'a>(points: impl Iterator<Item = Point<'a>>, keys: &[String]) -> Flat {
        let rows: Vec<Row<'a>> = points
            .flat_map(|point| {
                let runs = point.result.runs.iter();
                runs.flat_map(move |run| {
                    let row = move |tenant| Row { point, run, tenant };
                    run.tenants.iter().map(row)
                })
            })
            .collect();
        let text = |name: &str, of: &dyn Fn(&Row<'a>) -> Option<String>| Column {
            name: name.to_string(),
            values: Values::Text(rows.iter().map(of).collect()),
        };
        let whole = |name: &str, of: &dyn Fn(&Row<'a>) -> Option<u64>| Column {
            name: name.to_string(),
            values: Values::Whole(rows.iter().map(of).collect()),
        };
        let real = |name: &str, of: &dyn Fn(&Row<'a>) -> Option<f64>| Column {
            name: name.to_string(),
            values: Values::Real(rows.iter().map(of).collect()),
        };
        let swept = keys.iter().map(|key| {
            let value = |row: &Row<'a>| row.point.result.options.value(key).map(str::to_string);
            let values = rows.iter().map(value).collect();
            Column {
                name: key.clone(),
                values: Values::numbers(values),
            }
        });
        let mut columns: Vec<Column> = swept.collect();
        columns.extend([
            text("scenario", &|r| Some(r.point.result.scenario.clone())),
            text("substrate", &|r| {
                let name = serde_json::to_value(r.point.result.substrate).ok()?;
                name.as_str().map(str::to_string)
            }),
            text("set", &|r| Some(r.point.result.options.set.join(" "))),
            whole("number", &|r| r.point.number.map(u64::from)),
            real("ratio", &|r| r.point.ratio),
            whole("cpus", &|r| Some(r.point.result.host.cpus.into())),
            real("seconds", &|r| Some(r.point.result.options.seconds)),
            whole("pair", &|r| Some(r.run.pair.into())),
            whole("position", &|r| Some(r.run.position.into())),
            text("side", &|r| Some(r.run.side.clone())),
            whole("seed", &|r| Some(r.run.seed)),
            real("busy_percent", &|r| Some(r.run.busy_percent)),
            real("steal_percent", &|r| Some(r.run.steal_percent)),
            whole("idle_cpus", &|r| Some(r.run.idle_cpus.into())),
            real("agent_cpu_percent", &|r| Some(r.run.agent?.cpu_percent)),
            whole("agent_rss_bytes", &|r| Some(r.run.agent?.rss_bytes)),
            text("tenant", &|r| Some(r.tenant.tenant.clone())),
            text("class", &|r| {
                let name = match r.tenant.class {
                    TenantClass::Latency => "latency",
                    TenantClass::Batch => "batch",
                };
                Some(name.to_string())
            }),
            real("mean_us", &|r| r.figures().mean_us),
            real("p50_us", &|r| r.figures().p50_us),
            real("p99_us", &|r| r.figures().p99_us),
            real("p999_us", &|r| r.figures().p999_us),
            real("max_us", &|r| r.figures().max_us),
            real("requests_per_s", &|r| r.figures().requests_per_s),
            whole("requests", &|r| Some(r.figures().requests)),
            whole("errors", &|r| Some(r.figures().errors)),
            real("work_per_s", &|r| r.figures().work_per_s),
            text("work_unit", &|r| r.figures().work_unit.clone()),
            real("cpu_share", &|r| Some(r.figures().cpu_share)),
            real("run_delay_mean_us", &|r| r.scheduling()?.run_delay_mean_us),
            real("run_delay_p50_us", &|r| r.scheduling()?.run_delay_p50_us),
            real("run_delay_p99_us", &|r| r.scheduling()?.run_delay_p99_us),
            real("run_delay_max_us", &|r| r.scheduling()?.run_delay_max_us),
            real("switches_per_s", &|r| Some(r.scheduling()?.switches_per_s)),
            real("preemptions_per_s", &|r| {
                Some(r.scheduling()?.preemptions_per_s)
            }),
            real("migrations_per_s", &|r| {
                Some(r.scheduling()?.migrations_per_s)
            }),
            real("wakeups_per_s", &|r| Some(r.scheduling()?.wakeups_per_s)),
        ]);
        Flat { columns }
    }

    /// The number of rows.
    fn len(&self) -> usize {
        self.columns.first().map_or(0, |column| column.values.len())
    }

    /// Writes the table as CSV: a line of names, then the rows; null is empty.
    ///
    /// # Errors
    /// Where `out` cannot be written.
    pub fn write_csv(&self, out: impl Write) -> anyhow::Result<()> {
        let mut writer = csv::Writer::from_writer(out);
        let names = self.columns.iter().map(|column| &column.name);
        writer.write_record(names)?;
        for row in 0..self.len() {
            let cells = self.columns.iter().map(|column| column.values.cell(row));
            writer.write_record(cells)?;
        }
        Ok(writer.flush()?)
    }

    /// Writes the table as Parquet: one row group, not compressed, which every reader can read.
    ///
    /// # Errors
    /// Where `out` cannot be written, or the Parquet library refuses a column.
    pub fn write_parquet(&self, out: impl Write + Send) -> anyhow::Result<()> {
        Ok(self.put_parquet(out)?)
    }

    fn put_parquet(&self, file: impl Write + Send) -> parquet::errors::Result<()> {
        let fields = self.columns.iter().map(Column::schema);
        let fields = fields.collect::<parquet::errors::Result<Vec<_>>>()?;
        let schema = Type::group_type_builder("quell").with_fields(fields);
        let properties = Arc::new(WriterProperties::builder().build());
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema.build()?), properties)?;
        let mut group = writer.next_row_group()?;
        for column in &self.columns {
            if let Some(mut to) = group.next_column()? {
                column.values.put(&mut to)?;
                to.close()?;
            }
        }
        group.close()?;
        writer.close()?;
        Ok(())
    }
}

impl Column {
    fn schema(&self) -> parquet::errors::Result<TypePtr> {
        let (physical, logical) = match self.values {
            Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Values::Whole(_) => (Physical::INT64, Some(LogicalType::integer(64, false))),
            Values::Real(_) => (Physical::DOUBLE, None),
        };
        let column = Type::primitive_type_builder(&self.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical);
        Ok(Arc::new(column.build()?))
    }
}

impl Values {
    /// Numbers, where every value that is present parses as a number; else text.
    fn numbers(values: Vec<Option<String>>) -> Values {
        let number = |value: &Option<String>| match value {
            None => Some(None),
            Some(text) => text.parse::<f64>().ok().map(Some),
        };
        match values.iter().map(number).collect::<Option<Vec<_>>>() {
            Some(numbers) => Values::Real(numbers),
            None => Values::Text(values),
        }
    }

    fn len(&self) -> usize {
        match self {
            Values::Text(values) => values.len(),
            Values::Whole(values) => values.len(),
            Values::Real(values) => values.len(),
        }
    }

    fn cell(&self, row: usize) -> String {
        match self {
            Values::Text(values) => values[row].clone().unwrap_or_default(),
            Values::Whole(values) => values[row].map(|n| n.to_string()).unwrap_or_default(),
            Values::Real(values) => values[row].map(|n| n.to_string()).unwrap_or_default(),
        }
    }

    fn put(&self, to: &mut SerializedColumnWriter<'_>) -> parquet::errors::Result<()> {
        /// The values that are present, and for each row whether its value is (1 or 0).
        fn there<T, P>(values: &[Option<T>], as_: impl Fn(&T) -> P) -> (Vec<P>, Vec<i16>) {
            let levels = values.iter().map(|value| i16::from(value.is_some()));
            (values.iter().flatten().map(as_).collect(), levels.collect())
        }
        match self {
            Values::Text(values) => {
                let (values, levels) = there(values, |text| ByteArray::from(text.as_str()));
                to.typed::<ByteArrayType>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Values::Whole(values) => {
                // The column's type says that these numbers are unsigned.
                let (values, levels) = there(values, |&n| n as i64);
                to.typed::<Int64Type>()
                    .write_batch(&values, Some(&levels), None)?;
            }
            Values::Real(values) => {
                let (values, levels) = there(values, |&n| n);
                to.typed::<DoubleType>()
                    .write_batch(&values, Some(&levels), None)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use std::fs::File;

    fn made() -> (Flat, BenchResult) {
        let mut result = sample();
        result.options.set = vec![
            "host.cpus=4".to_string(),
            "tenant.a.note=x, \"y\"".to_string(),
        ];
        result.runs[0].seed = u64::MAX - 1;
        let point = Point {
            number: Some(3),
            ..Point::of(&result)
        };
        let keys = ["host.cpus".to_string(), "tenant.a.note".to_string()];
        (Flat::new([point].into_iter(), &keys), result)
    }

    #[test]
    fn csv_reads_back_with_every_run_and_tenant() {
        let (flat, result) = made();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.csv");
        flat.write_csv(File::create(&path).unwrap()).unwrap();
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let names = reader.headers().unwrap().clone();
        let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        let count: usize = result.runs.iter().map(|run| run.tenants.len()).sum();
        assert_eq!(rows.len(), count);
        let cell = |row: usize, name: &str| {
            let column = names.iter().position(|other| other == name).unwrap();
            rows[row][column].to_string()
        };
        assert_eq!(&names[0], "host.cpus");
        assert_eq!(
            (cell(0, "host.cpus"), cell(0, "tenant.a.note")),
            ("4".into(), "x, \"y\"".into())
        );
        assert_eq!(cell(0, "seed"), (u64::MAX - 1).to_string());
        assert_eq!(
            (cell(0, "number"), cell(0, "ratio")),
            ("3".into(), String::new())
        );
        let mut row = 0;
        for run in &result.runs {
            for tenant in &run.tenants {
                assert_eq!(
                    (cell(row, "side"), cell(row, "tenant")),
                    (run.side.clone(), tenant.tenant.clone())
                );
                let p99 = tenant.figures.p99_us.map(|us| us.to_string());
                assert_eq!(cell(row, "p99_us"), p99.unwrap_or_default());
                row += 1;
            }
        }
    }

    #[test]
    fn parquet_reads_back_the_same() {
        let (flat, _) = made();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        flat.write_parquet(File::create(&path).unwrap()).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(
            reader.metadata().file_metadata().num_rows() as usize,
            flat.len()
        );
        for (index, row) in reader.get_row_iter(None).unwrap().enumerate() {
            let row = row.unwrap();
            let fields: Vec<_> = row.get_column_iter().collect();
            assert_eq!(fields.len(), flat.columns.len());
            for ((name, field), column) in fields.into_iter().zip(&flat.columns) {
                assert_eq!(*name, column.name);
                let text = match field {
                    Field::Null => String::new(),
                    Field::Str(text) => text.clone(),
                    Field::ULong(n) => n.to_string(),
                    Field::Double(n) => n.to_string(),
                    other => panic!("{name}: {other:?}"),
                };
                assert_eq!(text, column.values.cell(index), "{name}");
            }
        }
    }
}
