import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Avro;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.KeyValueHeaderChangeEventFormat;
import java.io.FileWriter;
import java.io.PrintWriter;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Properties;
import java.util.function.Function;
import java.util.stream.Collectors;

/** Debezium's embedded engine: each change is a line of a file. Arguments: the engine's properties, the file, and json
 * or avro. Messages in Avro are texts in base64. */
public class DebeziumLines {
    public static void main(String[] given) throws Exception {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(given[0]))) {
            properties.load(reader);
        }
        PrintWriter lines = new PrintWriter(new FileWriter(given[1], true));
        if (given[2].equals("avro")) {
            var format = KeyValueHeaderChangeEventFormat.of(Avro.class, Avro.class, Json.class);
            run(DebeziumEngine.create(format), properties, lines, DebeziumLines::quoted);
        } else {
            var format = KeyValueHeaderChangeEventFormat.of(Json.class, Json.class, Json.class);
            run(DebeziumEngine.create(format), properties, lines, text -> text);
        }
    }

    private static <T> void run(DebeziumEngine.Builder<ChangeEvent<T, T>> builder, Properties properties,
            PrintWriter lines, Function<T, String> written) throws Exception {
        builder.using(properties)
            .notifying((changes, committer) -> {
                for (ChangeEvent<T, T> change : changes) {
                    lines.println(line(change, written));
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
            .build()
            .run();
    }

    private static String quoted(byte[] message) {
        return message == null ? "null" : "\"" + Base64.getEncoder().encodeToString(message) + "\"";
    }

    private static <T> String line(ChangeEvent<T, T> change, Function<T, String> written) {
        String headers = change.headers().stream()
            .map(header -> "\"" + header.getKey() + "\"").collect(Collectors.joining(","));
        return "{\"topic\":\"" + change.destination() + "\",\"headers\":[" + headers + "],\"key\":"
            + written.apply(change.key()) + ",\"value\":" + written.apply(change.value()) + "}";
    }
}
