import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileWriter;
import java.io.PrintWriter;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.stream.Collectors;

/** Debezium's embedded engine: each change is a line of a file. Arguments: the engine's properties, the file. */
public class DebeziumLines {
    public static void main(String[] given) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(given[0]))) {
            properties.load(reader);
        }
        PrintWriter lines = new PrintWriter(new FileWriter(given[1], true));
        var format = KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class);
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(format)
            .using(properties)
            .notifying((changes, committer) -> {
                for (ChangeEvent<String, String> change : changes) {
                    lines.println(line(change));
                    committer.markProcessed(change);
                }
                lines.flush();
                committer.markBatchFinished();
            })
            .using((done, message, error) -> {
                System.err.println(message);
                if (error != null) {
                    error.printStackTrace();
                }
                System.exit(done ? 0 : 1);
            })
            .build();
        engine.run();
    }

    private static String line(ChangeEvent<String, String> change) {
        String headers = change.headers().stream()
            .map(header -> "\"" + header.getKey() + "\"").collect(Collectors.joining(","));
        return "{\"topic\":\"" + change.destination() + "\",\"headers\":[" + headers + "],\"key\":" + change.key()
            + ",\"value\":" + change.value() + "}";
    }
}
