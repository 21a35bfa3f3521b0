import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;

/** Writes the certificates of a PEM file to a key store. */
public class Authorities {
    public static void main(String[] args) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        int n = 0;
        try (FileInputStream in = new FileInputStream(args[0])) {
            for (Certificate c : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
                store.setCertificateEntry("authority-" + n++, c);
            }
        }
        try (FileOutputStream out = new FileOutputStream(args[1])) {
            store.store(out, "changeit".toCharArray());
        }
    }
}
