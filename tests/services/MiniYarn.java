import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** Hadoop's own YARN and HDFS in one process. Arguments: the folder that gets the clients' settings once both answer,
 * and how many nodes. */
public class MiniYarn {
    public static void main(String[] given) {
        try {
            start(Path.of(given[0]), Integer.parseInt(given[1]));
        } catch (Exception | LinkageError wrong) {
            wrong.printStackTrace();
            System.exit(1);
        }
    }

    private static void start(Path folder, int nodes) throws Exception {
        Configuration settings = new YarnConfiguration();
        settings.setInt("yarn.scheduler.minimum-allocation-mb", 256);
        settings.setInt("yarn.nodemanager.resource.memory-mb", 8192);
        settings.setInt("yarn.nodemanager.resource.cpu-vcores", 8);
        settings.setInt("yarn.resourcemanager.am.max-attempts", 4);
        // A JVM reserves far more addresses than it uses.
        settings.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        settings.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100);
        settings.set("yarn.scheduler.capacity.root.queues", "default");
        settings.setInt("yarn.scheduler.capacity.root.default.capacity", 100);
        settings.setFloat("yarn.scheduler.capacity.maximum-am-resource-percent", 1);
        settings.set("yarn.scheduler.capacity.root.default.acl_submit_applications", "*");
        settings.set("yarn.scheduler.capacity.root.default.acl_administer_queue", "*");
        MiniDFSCluster hdfs = new MiniDFSCluster.Builder(settings, Path.of("hdfs").toFile()).numDataNodes(1).build();
        settings.set("fs.defaultFS", hdfs.getURI().toString());
        MiniYARNCluster yarn = new MiniYARNCluster("yarn", nodes, 1, 1);
        yarn.init(settings);
        yarn.start();
        Files.createDirectories(folder);
        Configuration files = new Configuration(false);
        files.set("fs.defaultFS", settings.get("fs.defaultFS"));
        write(files, folder.resolve("core-site.xml"));
        // Not all of the cluster's settings: some name classes that a client has not.
        Configuration manager = new Configuration(false);
        yarn.getConfig().getPropsWithPrefix("yarn.resourcemanager.")
            .forEach((name, value) -> manager.set("yarn.resourcemanager." + name, value));
        write(manager, folder.resolve("yarn-site.xml"));
    }

    private static void write(Configuration settings, Path file) throws IOException {
        Path part = file.resolveSibling("part");
        try (OutputStream out = Files.newOutputStream(part)) {
            settings.writeXml(out);
        }
        Files.move(part, file);
    }
}
